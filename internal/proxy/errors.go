package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// failure is an error of the proxy's own, in the OpenAI shape.
type failure struct {
	Status  int
	Type    string
	Code    string
	Param   string
	Message string
}

func (f *failure) Error() string { return f.Code + ": " + f.Message }

// body is the JSON object that clients get.
func (f *failure) body() []byte {
	var e struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    string  `json:"code"`
		} `json:"error"`
	}
	e.Error.Message, e.Error.Type, e.Error.Code = "compactproxy: "+f.Message, f.Type, f.Code
	if f.Param != "" {
		e.Error.Param = &f.Param
	}
	out, err := json.Marshal(e)
	if err != nil {
		panic("BUG: an error of strings is not JSON: " + err.Error())
	}
	return out
}

func (f *failure) write(w http.ResponseWriter) {
	body := f.body()
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.Status)
	_, _ = w.Write(body)
}

const (
	invalidRequest = "invalid_request_error"
	serverError    = "server_error"
)
