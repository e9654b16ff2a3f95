package llamasim

import (
	"context"
	"fmt"
	"sync"
)

// slots hands out the right to run, first come first served, and remembers
// what each slot last did.
type slots struct {
	free chan int

	mu       sync.Mutex
	state    []slotState
	tasks    int
	deferred int
}

type slotState struct {
	used, busy    bool
	task          int
	prompt        int // tokens of the prompt, and of the answer so far
	cached        int
	decoded       int
	params        generationParams
	generationTag string
}

func newSlots(n int) *slots {
	s := &slots{free: make(chan int, n), state: make([]slotState, n)}
	for i := range n {
		s.free <- i
	}
	return s
}

// acquire waits for a slot.
func (s *slots) acquire(ctx context.Context, p generationParams, tag string) (int, error) {
	id, ok := 0, false
	select {
	case id = <-s.free:
		ok = true
	default:
	}
	if !ok {
		s.wait(1)
		defer s.wait(-1)
		select {
		case id = <-s.free:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks++
	s.state[id] = slotState{used: true, busy: true, task: s.tasks, params: p, generationTag: tag}
	return id, nil
}

func (s *slots) wait(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deferred += n
}

func (s *slots) prompt(id, tokens, cached int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state[id].prompt, s.state[id].cached = tokens, cached
}

func (s *slots) decoded(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state[id].prompt++
	s.state[id].decoded++
}

func (s *slots) release(id int) {
	s.mu.Lock()
	s.state[id].busy = false
	s.mu.Unlock()
	s.free <- id
}

// counts are the running and the waiting requests.
func (s *slots) counts() (running, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, state := range s.state {
		if state.busy {
			running++
		}
	}
	return running, s.deferred
}

// body is the answer to GET /slots.
func (s *slots) body(window int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := []byte("[")
	for id, state := range s.state {
		if id > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"id":%d,"n_ctx":%d,"speculative":false,"is_processing":%t`, id, window, state.busy)
		if state.used {
			b = state.appendTask(b)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func (state slotState) appendTask(b []byte) []byte {
	cached, decoded, remain := 0, 0, -1
	if state.busy {
		cached, decoded = state.cached, state.decoded
		if state.params.maxTokens >= 0 {
			remain = state.params.maxTokens - decoded
		}
	}
	b = fmt.Appendf(b, `,"id_task":%d,"n_prompt_tokens":%d,"n_prompt_tokens_processed":0,"n_prompt_tokens_cache":%d,"params":`,
		state.task, state.prompt, cached)
	b = appendSampling(b, samplingShown{
		params:           state.params,
		chatFormat:       "peg-native",
		reasoningFormat:  "deepseek",
		generationPrompt: state.generationTag,
	})
	return fmt.Appendf(b, `,"next_token":[{"has_next_token":%t,"has_new_line":false,"n_remain":%d,"n_decoded":%d}]`,
		state.busy, remain, decoded)
}
