package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrCannotCount says that the server has no way to tell how many tokens a request has.
var ErrCannotCount = errors.New("the server cannot count the tokens of a request")

// A CountError says why one count failed. Another body may well be counted, or the same one later. It
// holds no word of the body's or the server's.
type CountError struct {
	Path   string // what was asked
	Status int    // of the answer; 0 where there was none
	// Err is what went wrong other than by the status: context.Canceled, context.DeadlineExceeded, a
	// syscall.Errno, io.ErrUnexpectedEOF, or words of our own.
	Err error

	missing bool // the server does not know the question
}

func (e *CountError) Error() string {
	switch {
	case e.Err == nil:
		return fmt.Sprintf("POST %s: %d", e.Path, e.Status)
	case e.Status == 0:
		return fmt.Sprintf("POST %s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("POST %s: %d, %v", e.Path, e.Status, e.Err)
}

// Unwrap returns Err.
func (e *CountError) Unwrap() error { return e.Err }

var (
	errNoCount    = errors.New("no count")
	errNothing    = errors.New("a prompt of no tokens")
	errTooLarge   = errors.New("more than the request can account for")
	errMedia      = errors.New("images and sounds cannot be counted in this way")
	errUnreadable = errors.New("no connection, or no answer that could be read")
)

const (
	inputTokensPath   = "/v1/chat/completions/input_tokens"
	applyTemplatePath = "/apply-template"
	tokenizePath      = "/tokenize"

	// relearn is how long a server is not asked again what it did not know.
	relearn = time.Hour

	// A prompt is about as long as the request that it is made of. Templates that indent the tools' JSON
	// double those.
	promptPerByte = 4
	// A token is some three bytes of a prompt, and at worst one; its number has at most seven digits.
	listPerByte = 16
)

// hello is the smallest request that every template takes. It names no model, since a llama-server
// that chooses among many would load that one; the limit is for whoever takes it for a chat.
const hello = `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}`

// mediaMarker begins what llama-server puts into a prompt in the place of an image.
var mediaMarker = []byte("<__media_")

// A Counter asks the server how many tokens the prompt of a chat request has. There are two ways, both
// exact: POST /v1/chat/completions/input_tokens and, on llama-servers from before that,
// POST /apply-template and POST /tokenize. Neither takes a slot or touches a cache.
//
// What the server does not know it is not asked again for an hour. A way that has worked is held on to,
// whatever is answered later. Reset forgets both.
type Counter struct {
	Client  *http.Client  // nil means http.DefaultClient; redirects are not followed
	BaseURL string        // with or without /v1
	APIKey  string        // sent by Probe as a bearer token, if any; Count sends what it is given
	Timeout time.Duration // for a whole count; 0 means 10 s

	mu     sync.Mutex
	resets int // tells what was asked before a Reset
	ways   [2]wayState
}

// A wayState is what is known of a way to count.
type wayState struct {
	works   bool
	missing time.Time // when the server was found not to know it; zero if it was not
}

// Count returns the size in tokens of the prompt that the server makes of the body of a chat request.
// Of the header fields, Authorization and X-Api-Key are sent.
//
// The error is ErrCannotCount where the server has no way to count, else a *CountError: the server was
// away, loading, wanted a key, or refused this very body as it would refuse the chat.
func (c *Counter) Count(ctx context.Context, body []byte, h http.Header) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, defaultTimeout))
	defer cancel()
	for way, ask := range [...]func(context.Context, []byte, http.Header) (int, *CountError){c.inputTokens, c.templateTokens} {
		resets, ok := c.mayAsk(way)
		if !ok {
			continue
		}
		n, failed := ask(ctx, body, h)
		switch {
		case failed == nil:
			c.learn(way, resets, true)
			return n, nil
		case !failed.missing:
			return 0, failed
		case c.learn(way, resets, false):
			// A router, or a gateway that has lost its server: the body may be the reason.
			return 0, failed
		}
	}
	return 0, ErrCannotCount
}

// Probe finds out whether the server counts, by a request of our own of a dozen tokens. Its errors are
// those of Count.
func (c *Counter) Probe(ctx context.Context) error {
	h := http.Header{}
	if c.APIKey != "" {
		h.Set("Authorization", "Bearer "+c.APIKey)
	}
	_, err := c.Count(ctx, []byte(hello), h)
	return err
}

// Exact reports whether the server is known to count. It is false before the first answer, see Known.
func (c *Counter) Exact() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.ways[:], func(w wayState) bool { return w.works })
}

// Known reports whether Exact rests on what the server said. It stays true while the server is asked
// anew after an hour, so that what depends on it does not waver.
func (c *Counter) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cannot := true
	for _, w := range c.ways {
		if w.works {
			return true
		}
		cannot = cannot && !w.missing.IsZero()
	}
	return cannot
}

// Reset forgets what was learned, counts under way included. It is for a server that is ready and is not
// the one it was.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resets++
	c.ways = [2]wayState{}
}

// mayAsk reports whether a way is worth asking for.
func (c *Counter) mayAsk(way int) (resets int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := c.ways[way].missing
	return c.resets, missing.IsZero() || time.Since(missing) >= relearn
}

// learn takes in whether a way was there, and reports whether it has ever been.
func (c *Counter) learn(way, resets int, works bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if resets != c.resets {
		return works // that was another server
	}
	w := &c.ways[way]
	switch {
	case works:
		*w = wayState{works: true}
	case !w.works:
		w.missing = time.Now()
	}
	return w.works
}

// inputTokens counts in one question.
func (c *Counter) inputTokens(ctx context.Context, body []byte, h http.Header) (int, *CountError) {
	answer, failed := c.post(ctx, inputTokensPath, h, body)
	if failed != nil {
		return 0, failed
	}
	defer answer.Close()
	limited := &io.LimitedReader{R: answer, N: lookAt}
	dec := jsontext.NewDecoder(limited, lenient...)
	n := 0
	err := member(dec, "input_tokens", '0', func() error {
		raw, err := dec.ReadValue()
		n = count(raw)
		return err
	})
	switch {
	case err != nil && limited.N == 0: // an answer, to another question
		return 0, &CountError{Path: inputTokensPath, Status: http.StatusOK, Err: errNoCount, missing: true}
	case err != nil:
		return 0, unread(inputTokensPath, err)
	case n == 0:
		return 0, &CountError{Path: inputTokensPath, Status: http.StatusOK, Err: errNothing}
	}
	return n, nil
}

// templateTokens has the prompt written and then cut into tokens.
func (c *Counter) templateTokens(ctx context.Context, body []byte, h http.Header) (int, *CountError) {
	prompt, failed := c.applyTemplate(ctx, body, h)
	if failed != nil {
		return 0, failed
	}
	if bytes.Contains(prompt, mediaMarker) {
		return 0, &CountError{Path: applyTemplatePath, Status: http.StatusOK, Err: errMedia}
	}
	// add_special: the server takes the prompt's own BOS off and leaves it to the tokenizer to add one,
	// where the model wants one. model: a llama-server with many goes by it.
	question := []byte(`{"add_special":true,"parse_special":true,`)
	if model := modelOf(body); model != nil {
		question = fmt.Appendf(question, `"model":%s,`, model)
	}
	answer, failed := c.post(ctx, tokenizePath, h, append(question, `"content":`...), prompt, []byte("}"))
	if failed != nil {
		return 0, failed
	}
	defer answer.Close()
	limited := &io.LimitedReader{R: answer, N: maxAnswer + listPerByte*int64(len(prompt))}
	dec := jsontext.NewDecoder(limited, lenient...)
	n := 0
	err := member(dec, "tokens", '[', func() (err error) {
		n, err = numbers(dec)
		return err
	})
	switch {
	case err != nil && limited.N == 0:
		return 0, &CountError{Path: tokenizePath, Status: http.StatusOK, Err: errTooLarge}
	case err != nil:
		return 0, unread(tokenizePath, err)
	case n == 0:
		return 0, &CountError{Path: tokenizePath, Status: http.StatusOK, Err: errNothing}
	}
	return n, nil
}

// applyTemplate returns the prompt as the JSON string that the server made of it: it goes back as it is.
func (c *Counter) applyTemplate(ctx context.Context, body []byte, h http.Header) (prompt jsontext.Value, failed *CountError) {
	answer, failed := c.post(ctx, applyTemplatePath, h, body)
	if failed != nil {
		return nil, failed
	}
	defer answer.Close()
	limited := &io.LimitedReader{R: answer, N: maxAnswer + promptPerByte*int64(len(body))}
	dec := jsontext.NewDecoder(limited, lenient...)
	err := member(dec, "prompt", '"', func() (err error) {
		prompt, err = dec.ReadValue()
		return err
	})
	switch {
	case err != nil && limited.N == 0:
		return nil, &CountError{Path: applyTemplatePath, Status: http.StatusOK, Err: errTooLarge}
	case err != nil:
		return nil, unread(applyTemplatePath, err)
	}
	return prompt, nil // the decoder's own bytes, and nobody reads on
}

// post asks, with a body in parts, and returns the answer to read if it is one: 200.
func (c *Counter) post(ctx context.Context, path string, h http.Header, parts ...[]byte) (io.ReadCloser, *CountError) {
	open := func() (io.ReadCloser, error) {
		readers := make([]io.Reader, len(parts))
		for i, part := range parts {
			readers[i] = bytes.NewReader(part)
		}
		return io.NopCloser(io.MultiReader(readers...)), nil
	}
	content, _ := open()
	base := strings.TrimSuffix(strings.TrimRight(c.BaseURL, "/"), "/v1")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, content)
	if err != nil {
		return nil, &CountError{Path: path, Err: errUnreadable}
	}
	req.GetBody = open
	for _, part := range parts {
		req.ContentLength += int64(len(part))
	}
	req.Close = true // llama-server does not keep a connection, see the proxy's transport
	// The conversation keeps a balancer on the server that has the prompt cached.
	for _, name := range []string{"Authorization", "X-Api-Key", "X-Compactproxy-Conversation"} {
		if values := h.Values(name); len(values) > 0 {
			req.Header[name] = slices.Clone(values)
		}
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "compactproxy")
	client := *cmp.Or(c.Client, http.DefaultClient)
	client.CheckRedirect = func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the body and the key are for this server only
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, &CountError{Path: path, Err: wordless(err)}
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	failed := &CountError{Path: path, Status: resp.StatusCode}
	switch resp.StatusCode {
	case http.StatusNotFound:
		text, err := io.ReadAll(io.LimitReader(resp.Body, lookAt))
		failed.missing = err == nil && !missesModel(text)
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		failed.missing = true
	}
	return nil, failed
}

// missesModel reports whether a 404 is about the model that the request names: then the path is known.
func missesModel(body []byte) bool {
	rep := readReport(body)
	return slices.Contains(rep.labels, "model_not_found") ||
		slices.ContainsFunc(strings.Fields(rep.text), func(word string) bool {
			return strings.Trim(word, "\"'`.,:;()") == "model"
		})
}

// wordless keeps of an error what cannot hold words of the server's: net/http quotes what it cannot
// read.
func wordless(err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	}
	return errUnreadable
}

// unread is the error of an answer with status 200 that could not be read. One that is whole and
// something else comes from a server that does not know the question.
func unread(path string, err error) *CountError {
	var syntax *jsontext.SyntacticError
	if errors.Is(err, errNoCount) || err == io.EOF || errors.As(err, &syntax) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return &CountError{Path: path, Status: http.StatusOK, Err: errNoCount, missing: true}
	}
	return &CountError{Path: path, Status: http.StatusOK, Err: wordless(err)}
}

// member reads an object up to the member of that name and kind and has its value read. The error is
// errNoCount where there is none.
func member(dec *jsontext.Decoder, name string, kind jsontext.Kind, read func() error) error {
	token, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if token.Kind() != '{' {
		return errNoCount
	}
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if token.Kind() == '}' {
			return errNoCount
		}
		if token.String() == name {
			break
		}
		if err := dec.SkipValue(); err != nil {
			return err
		}
	}
	if got := dec.PeekKind(); got != kind && got != 0 { // 0: the read says what is wrong
		return errNoCount
	}
	return read()
}

// numbers reads an array of numbers and returns how many there are, without keeping any.
func numbers(dec *jsontext.Decoder) (n int, err error) {
	if _, err := dec.ReadToken(); err != nil {
		return 0, err
	}
	for {
		token, err := dec.ReadToken()
		switch {
		case err != nil:
			return 0, err
		case token.Kind() == ']':
			return n, nil
		case token.Kind() != '0':
			return 0, errNoCount
		}
		n++
	}
}

// modelOf returns the model that a body names as the JSON string it is there, or nil.
func modelOf(body []byte) (model jsontext.Value) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), lenient...)
	_ = member(dec, "model", '"', func() (err error) {
		model, err = dec.ReadValue()
		return err
	})
	return model
}
