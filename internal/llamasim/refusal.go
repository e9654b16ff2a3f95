package llamasim

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// refusal is an error answer.
type refusal struct {
	status  int
	kind    string
	message string
	// routing errors (wrong path, wrong key, still loading) put the code last.
	codeLast bool
	// nPrompt and nCtx are given where a prompt did not fit.
	nPrompt, nCtx int
}

const (
	kindInvalid = "invalid_request_error"
	kindServer  = "server_error"
	kindSupport = "not_supported_error"
	kindTooLong = "exceed_context_size_error"
)

var (
	errLoading  = &refusal{status: http.StatusServiceUnavailable, kind: "unavailable_error", message: "Loading model", codeLast: true}
	errKey      = &refusal{status: http.StatusUnauthorized, kind: "authentication_error", message: "Invalid API Key", codeLast: true}
	errNotFound = &refusal{status: http.StatusNotFound, kind: "not_found_error", message: "File Not Found", codeLast: true}

	errEmbeddings = &refusal{status: http.StatusNotImplemented, kind: kindSupport, message: "This server does not support embeddings. Start it with `--embeddings`"}
	errReranking  = &refusal{status: http.StatusNotImplemented, kind: kindSupport, message: "This server does not support reranking. Start it with `--reranking`"}

	errPoolExhausted = &refusal{status: http.StatusInternalServerError, kind: kindServer, message: "Context size has been exceeded."}
)

// invalidRequest is the refusal of a request the client got wrong.
func invalidRequest(format string, args ...any) *refusal {
	return &refusal{status: http.StatusBadRequest, kind: kindInvalid, message: fmt.Sprintf(format, args...)}
}

// serverError is what the real server makes of faults it finds too late to
// call them the client's.
func serverError(format string, args ...any) *refusal {
	return &refusal{status: http.StatusInternalServerError, kind: kindServer, message: fmt.Sprintf(format, args...)}
}

// tooLong is the refusal of a prompt that does not fit.
func tooLong(promptTokens, window int) *refusal {
	return &refusal{
		status:  http.StatusBadRequest,
		kind:    kindTooLong,
		message: fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens), try increasing it", promptTokens, window),
		nPrompt: promptTokens,
		nCtx:    window,
	}
}

func (e *refusal) Error() string { return e.message }

// body is the error as JSON.
func (e *refusal) body() []byte {
	code := strconv.Itoa(e.status)
	b := []byte(`{"error":{`)
	if !e.codeLast {
		b = append(b, `"code":`+code+`,`...)
	}
	b = append(b, `"message":`...)
	b = appendString(b, e.message)
	b = append(b, `,"type":"`+e.kind+`"`...)
	if e.codeLast {
		b = append(b, `,"code":`+code...)
	}
	if e.nCtx > 0 {
		b = fmt.Appendf(b, `,"n_prompt_tokens":%d,"n_ctx":%d`, e.nPrompt, e.nCtx)
	}
	return append(b, "}}"...)
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	// The error only tells that bytes which are no UTF-8 were replaced.
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
