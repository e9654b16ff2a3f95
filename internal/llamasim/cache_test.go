package llamasim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// conversation builds request bodies like those of an agent: a task, then
// rounds of a call and its result.
type conversation struct {
	random   *rand.Rand
	tools    string
	messages []string
}

func newConversation(seed uint64) *conversation {
	c := &conversation{
		random: rand.New(rand.NewPCG(seed, 7)),
		tools:  `[{"type":"function","function":{"name":"shell","description":"run a command","parameters":{"type":"object","properties":{"cmd":{"type":"string"}}}}}]`,
	}
	c.add(roleSystem, "You are a careful agent.")
	c.add(roleUser, fmt.Sprintf("Task %d: make the tests pass.", seed))
	return c
}

func (c *conversation) add(role, content string) {
	c.messages = append(c.messages, fmt.Sprintf(`{"role":%q,"content":%s}`, role, appendString(nil, content)))
}

var words = strings.Fields("func return err nil the file range string test value index of a to = := { } ( ) // handler")

// round adds a call and a result of about so many tokens.
func (c *conversation) round(tokens int) {
	id := fmt.Sprintf("call_%d", len(c.messages))
	c.messages = append(c.messages,
		fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":%q,"type":"function","function":{"name":"shell","arguments":"{\"cmd\":\"cat %d.go\"}"}}]}`, id, c.random.IntN(1000)),
		fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%s}`, id, appendString(nil, c.text(tokens))))
}

func (c *conversation) text(tokens int) string {
	var b strings.Builder
	for i := range tokens {
		if i > 0 && i%12 == 0 {
			b.WriteString("\n\t")
		}
		b.WriteString(words[c.random.IntN(len(words))] + " ")
	}
	return b.String()
}

func (c *conversation) body(more string) string {
	return `{"tools":` + c.tools + "," + more + `"messages":[` + strings.Join(c.messages, ",") + "]}"
}

// use is what an answer says of the cache.
type use struct{ prompt, cached int }

func useOf(t *testing.T, a wireAnswer) use {
	t.Helper()
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	usage := messageOf(a.body).usage
	return use{usage.number("prompt_tokens", -1), members(usage["prompt_tokens_details"]).number("cached_tokens", -1)}
}

func TestCache_IdenticalRepeatLacksTheLastToken(t *testing.T) {
	server := start(t, New(Options{}))
	body := newConversation(1).body("")
	first := useOf(t, post(t, server, chatPath, body))
	second := useOf(t, post(t, server, chatPath, body))
	if first.cached != 0 || second != (use{first.prompt, first.prompt - 1}) {
		t.Errorf("first %+v, repeat %+v", first, second)
	}
}

// Whatever the answers, each prompt of a growing conversation finds the one
// before it in the cache, all but the last token perhaps.
func TestCache_ExtendedPromptFindsItsPredecessor(t *testing.T) {
	for _, template := range []Template{TemplateQwen, TemplatePlain, TemplateThinking} {
		server := start(t, New(Options{Template: template, Window: 1 << 20}))
		c := newConversation(2)
		last := useOf(t, post(t, server, chatPath, c.body("")))
		for i := range 12 {
			c.round(50 + 30*i)
			if i == 7 {
				c.add(roleAssistant, "  Done, I think.")
				if template != TemplateThinking {
					// There, a new user message changes the turns before it.
					c.add(roleUser, "Go on.")
				} else {
					c.round(10)
				}
			}
			now := useOf(t, post(t, server, chatPath, c.body("")))
			if now.prompt <= last.prompt || now.cached < last.prompt-1 || now.cached > last.prompt {
				t.Errorf("template %d, round %d: after %+v came %+v", template, i, last, now)
			}
			last = now
		}
	}
}

func TestCache_AnswersToo(t *testing.T) {
	server := start(t, New(Options{CacheAnswers: true, Reply: func(Request) Reply { return Reply{Text: "Looking at it now."} }}))
	c := newConversation(3)
	first := post(t, server, chatPath, c.body(""))
	before := useOf(t, first)
	c.add(roleAssistant, messageOf(first.body).content)
	c.add(roleUser, "And?")
	after := useOf(t, post(t, server, chatPath, c.body("")))
	if want := before.prompt + CountTokens("Looking at it now."+markEnd); after.cached < want-1 || after.cached > want {
		t.Errorf("after %+v came %+v, want about %d cached", before, after, want)
	}
}

// TestCache_Scenarios goes through what was measured on the real server with
// its RAM cache on.
func TestCache_Scenarios(t *testing.T) {
	server := start(t, New(Options{Slots: 1, Window: 1 << 20}))
	run := func(c *conversation) use { return useOf(t, post(t, server, chatPath, c.body(`"max_tokens":1,`))) }
	near := func(what string, got, want int) {
		t.Helper()
		if got < want-1 || got > want {
			t.Errorf("%s: %d cached, want %d", what, got, want)
		}
	}
	a := newConversation(4)
	for range 20 {
		a.round(300)
	}
	full := run(a)
	next := *a
	next.messages = append([]string(nil), a.messages...)
	next.round(120)

	edited := *a
	edited.messages = append([]string(nil), a.messages...)
	edited.messages[25] = `{"role":"tool","tool_call_id":"x","content":"[stale]"}`
	same := shared(t, a, &edited)
	if same < full.prompt/2 || same > full.prompt*2/3 {
		t.Fatalf("%d of %d tokens before the edit", same, full.prompt)
	}
	near("a result in the middle replaced", run(&edited).cached, same)
	near("the old conversation again, its place taken by the edited one", run(a).cached, same)

	compacted := *a
	compacted.messages = append([]string{a.messages[0], a.messages[1], `{"role":"assistant","content":"Summary: all is well."}`}, a.messages[len(a.messages)-6:]...)
	short := run(&compacted)
	near("compacted", short.cached, shared(t, a, &compacted))
	compacted.round(50)
	near("compacted, next turn", run(&compacted).cached, short.prompt)
	near("the old conversation's next turn after the compacted one", run(&next).cached, full.prompt)

	title := newConversation(4)
	title.tools = "[]"
	title.add(roleAssistant, "A title?")
	title.add(roleUser, "Five words.")
	run(title)
	next.round(10)
	if n := run(&next); n.cached < full.prompt {
		t.Errorf("after a title call: %+v", n)
	}
}

// shared is how many tokens the prompts of two conversations begin with alike.
func shared(t *testing.T, a, b *conversation) int {
	t.Helper()
	var tokens [2][]uint64
	for i, c := range []*conversation{a, b} {
		_, prompt, err := New(Options{}).render([]byte(c.body("")))
		if err != nil {
			t.Fatal(err)
		}
		tokens[i] = tokenize(prompt)
	}
	return commonPrefix(tokens[0], tokens[1])
}

func TestCache_SinglePromptIsWipedBySideCall(t *testing.T) {
	server := start(t, New(Options{CachedPrompts: 1}))
	c := newConversation(5)
	for range 10 {
		c.round(200)
	}
	useOf(t, post(t, server, chatPath, c.body("")))
	useOf(t, post(t, server, chatPath, chatBody("", "user", "a title, please")))
	if n := useOf(t, post(t, server, chatPath, c.body(""))); n.cached > n.prompt/10 {
		t.Errorf("%+v", n)
	}
}

func TestCache_RefusalLeavesNoTrace(t *testing.T) {
	s := New(Options{Slots: 1, Window: 2000, CachedPrompts: 1, Reply: func(r Request) Reply {
		if strings.Contains(r.Prompt, "please fail") {
			return Reply{Answer: JSONAnswer(503, `{}`)}
		}
		return Reply{Text: "ok"}
	}})
	server := start(t, s)
	c := newConversation(6)
	c.round(500)
	before := useOf(t, post(t, server, chatPath, c.body("")))
	c.round(1500)
	refused := post(t, server, chatPath, c.body(""))
	if e := members(members([]byte(refused.body))["error"]); refused.status != 400 || e.text("type") != kindTooLong || e.number("n_ctx", 0) != 2000 {
		t.Fatalf("%+v", refused)
	}
	if failed := post(t, server, chatPath, chatBody("", "user", "please fail")); failed.status != 503 {
		t.Fatalf("%+v", failed)
	}
	c.messages = c.messages[:len(c.messages)-1]
	c.messages = append(c.messages, `{"role":"tool","tool_call_id":"x","content":"cut"}`)
	if after := useOf(t, post(t, server, chatPath, c.body(""))); after.cached < before.prompt-1 {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestCache_PromptFalse(t *testing.T) {
	server := start(t, New(Options{}))
	c := newConversation(8)
	post(t, server, chatPath, c.body(""))
	if n := useOf(t, post(t, server, chatPath, c.body(`"cache_prompt":false,`))); n.cached != 0 {
		t.Errorf("%+v", n)
	}
}

// A prompt that was given up while it was processed is remembered as far as
// it was found in the cache; what it shares nothing with stays.
func TestCache_GivenUpInPrefill(t *testing.T) {
	entered := make(chan struct{})
	finished := make(chan Recorded, 10)
	s := New(Options{Window: 1 << 20, Finished: func(r Recorded) { finished <- r }, Reply: func(r Request) Reply {
		if r.Number != 2 {
			return Reply{Text: "ok"}
		}
		return Reply{BeforeFirstByte: func(ctx context.Context) {
			close(entered)
			<-ctx.Done()
		}}
	}})
	server := start(t, s)
	c := newConversation(9)
	c.round(3000)
	before := useOf(t, post(t, server, chatPath, c.body("")))
	<-finished
	other := newConversation(10)
	other.round(3000)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	request, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+chatPath, strings.NewReader(other.body("")))
	if _, err := server.Client().Do(request); err == nil {
		t.Fatal("the request was answered")
	}
	if r := <-finished; !r.Canceled || r.Status != 0 {
		t.Errorf("canceled %t, status %d", r.Canceled, r.Status)
	}
	if n := useOf(t, post(t, server, chatPath, other.body(""))); n.cached > n.prompt/10 {
		t.Errorf("the prompt given up: %+v", n)
	}
	if n := useOf(t, post(t, server, chatPath, c.body(""))); n.cached != before.prompt-1 {
		t.Errorf("the other one: %+v", n)
	}
}
