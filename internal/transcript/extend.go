package transcript

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// bending are the members of a request that would bend an answer of our own or
// ask for what nobody reads; each is left out of an extended request. Sampling
// stays the client's: it is tuned to the model. None of them changes the rendered
// prompt (measured on llama-server: sampling, format and choice of tools do not).
var bending = map[string]bool{
	"stop": true, "response_format": true, "json_schema": true, "grammar": true, "n": true, "logprobs": true,
	"top_logprobs": true, "logit_bias": true, "n_probs": true, "ignore_eos": true, "tool_choice": true,
	"max_tokens": true, "max_completion_tokens": true, "n_predict": true, "stream": true, "stream_options": true,
	"return_progress": true, "timings_per_token": true, "parallel_tool_calls": true, "store": true, "prediction": true,
}

// Extend returns the body of a request of our own on top of the client's: the
// same bytes with this list in place of the messages, so that the server renders
// the prompt that it has cached; streamed, with usage reported, and progress where
// that is wanted, no call of a tool allowed, and at most maxTokens generated.
func (b *Body) Extend(list []Message, maxTokens int, progress bool) ([]byte, error) {
	raw := b.Rewrite(list)
	w := newWalker(raw)
	var edits []splice
	at, last := 1, 0 // behind the opening brace; where the last member that stays ends
	first := true
	err := w.members(func(key string, _ jsontext.Kind) error {
		s, err := w.value()
		if err != nil {
			return err
		}
		if bending[key] {
			// The member goes with the comma that stands before it, or, of the first
			// one, with the comma behind it.
			end := s.end
			if first {
				if next := skipSpace(raw, end); next < len(raw) && raw[next] == ',' {
					end = next + 1
				}
			}
			edits = append(edits, splice{at: span{at, end}})
			at = end
			return nil
		}
		first = false
		at, last = s.end, s.end
		return nil
	})
	if err != nil {
		return nil, err
	}
	own := []byte(`"stream":true,"stream_options":{"include_usage":true},`)
	if progress {
		own = append(own, `"return_progress":true,`...)
	}
	own = append(own, `"max_tokens":`...)
	own = strconv.AppendInt(own, int64(maxTokens), 10)
	if b.HasTools {
		own = append(own, `,"tool_choice":"none"`...)
	}
	end := len(bytes.TrimRight(raw, " \t\r\n")) - 1 // the closing brace
	if last > 0 {
		own = append([]byte{','}, own...)
	}
	edits = append(edits, splice{span{end, end}, own})
	return rebuild(raw, edits), nil
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}
