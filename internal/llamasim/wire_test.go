package llamasim

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// wireAnswer is a response as it stood on the wire.
type wireAnswer struct {
	status  int
	headers map[string]string // names as sent
	body    string
	broken  error // set when the body did not end as it should
}

// start serves s until the test ends.
func start(t testing.TB, s *Server) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server
}

// send makes one request on a connection of its own and reads the answer as
// it comes: the standard client would tidy its headers.
func send(t testing.TB, server *httptest.Server, method, path string, headers map[string]string, body string) wireAnswer {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: sim\r\nContent-Length: %d\r\n", method, path, len(body))
	for name, value := range headers {
		request += name + ": " + value + "\r\n"
	}
	if _, err := io.WriteString(conn, request+"\r\n"+body); err != nil {
		t.Fatal(err)
	}
	answer, err := readAnswer(bufio.NewReader(conn), method)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer
}

func readAnswer(r *bufio.Reader, method string) (wireAnswer, error) {
	var head bytes.Buffer
	headers := map[string]string{}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return wireAnswer{}, err
		}
		head.WriteString(line)
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}
		if name, value, ok := strings.Cut(line, ":"); ok {
			headers[name] = strings.TrimSpace(value)
		}
	}
	response, err := http.ReadResponse(bufio.NewReader(io.MultiReader(&head, r)), &http.Request{Method: method})
	if err != nil {
		return wireAnswer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return wireAnswer{status: response.StatusCode, headers: headers, body: string(body), broken: err}, nil
}

func post(t testing.TB, server *httptest.Server, path, body string) wireAnswer {
	t.Helper()
	return send(t, server, http.MethodPost, path, nil, body)
}

const chatPath = "/v1/chat/completions"

// dataOf are the payloads of a stream's events, comments aside.
func dataOf(body string) []string {
	var data []string
	for event := range strings.SplitSeq(body, "\n\n") {
		if payload, ok := strings.CutPrefix(event, "data: "); ok {
			data = append(data, payload)
		}
	}
	return data
}

// assembled is what a client makes of a stream.
type assembled struct {
	content, reasoning string
	calls              []ToolCall
	finish             string
	usage, timings     object
	done               bool
}

func assemble(body string) assembled {
	var a assembled
	for _, data := range dataOf(body) {
		if data == "[DONE]" {
			a.done = true
			continue
		}
		chunk := members([]byte(data))
		if chunk.has("usage") {
			a.usage = members(chunk["usage"])
		}
		if chunk.has("timings") {
			a.timings = members(chunk["timings"])
		}
		for _, choice := range elements(chunk["choices"]) {
			c := members(choice)
			a.finish += c.text("finish_reason")
			d := members(c["delta"])
			a.content += d.text("content")
			a.reasoning += d.text("reasoning_content")
			for _, raw := range elements(d["tool_calls"]) {
				call := members(raw)
				function := members(call["function"])
				i := call.number("index", 0)
				if i == len(a.calls) {
					a.calls = append(a.calls, ToolCall{ID: call.text("id"), Name: function.text("name")})
				}
				a.calls[i].Arguments += function.text("arguments")
			}
		}
	}
	return a
}

// messageOf reads the message and the finish reason of a plain answer.
func messageOf(body string) assembled {
	o := members([]byte(body))
	var a assembled
	for _, choice := range elements(o["choices"])[:1] {
		c := members(choice)
		a.finish = c.text("finish_reason")
		m := members(c["message"])
		a.content, a.reasoning = m.text("content"), m.text("reasoning_content")
		for _, raw := range elements(m["tool_calls"]) {
			call := members(raw)
			function := members(call["function"])
			a.calls = append(a.calls, ToolCall{ID: call.text("id"), Name: function.text("name"), Arguments: function.text("arguments")})
		}
	}
	a.usage, a.timings, a.done = members(o["usage"]), members(o["timings"]), true
	return a
}

// chatBody is a request of the given messages, as alternating role and text,
// with more members ahead.
func chatBody(more string, messages ...string) string {
	var list []string
	for pair := range slices.Chunk(messages, 2) {
		list = append(list, fmt.Sprintf(`{"role":%q,"content":%s}`, pair[0], appendString(nil, pair[1])))
	}
	return "{" + more + `"messages":[` + strings.Join(list, ",") + "]}"
}
