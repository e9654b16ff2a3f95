package llamasim

import (
	"strings"
	"testing"
)

// A thinking template shows reasoning only after the last user message: one
// more of those, and the whole tool loop reads differently. The same words at
// the end of the last result change nothing before them.
func TestTemplateThinking_UserMessageBreaksThePrefix(t *testing.T) {
	loop := func() *conversation {
		c := newConversation(1)
		for range 10 {
			c.round(200)
		}
		return c
	}
	server := start(t, New(Options{Template: TemplateThinking, Window: 1 << 20}))
	ask := func(c *conversation, more string) use {
		return useOf(t, post(t, server, chatPath, c.body(more)))
	}
	base := ask(loop(), "")
	asUser := loop()
	asUser.add(roleUser, "Summarise.")
	inResult := loop()
	last := len(inResult.messages) - 1
	inResult.messages[last] = strings.TrimSuffix(inResult.messages[last], `"}`) + ` Summarise."}`

	if n := ask(inResult, ""); n.cached < base.prompt-12 {
		t.Errorf("in the result: %+v after %+v", n, base)
	}
	if n := ask(asUser, ""); n.cached > base.prompt/5 {
		t.Errorf("as a user message: %+v after %+v", n, base)
	}
	kept := ask(loop(), `"chat_template_kwargs":{"preserve_thinking":true},`)
	if n := ask(asUser, `"chat_template_kwargs":{"preserve_thinking":true},`); n.cached < kept.prompt-12 {
		t.Errorf("as a user message with thinking preserved: %+v after %+v", n, kept)
	}
}

func TestTemplateThinking_NeedsUser(t *testing.T) {
	server := start(t, New(Options{Template: TemplateThinking}))
	got := post(t, server, chatPath, chatBody("", "tool", "x"))
	if got.status != 400 || !strings.Contains(got.body, "No user query found in messages.") {
		t.Errorf("%+v", got)
	}
}

// What a tool object holds, and in which order, shows only as far as the
// template prints it.
func TestTemplate_ToolsAreNormalised(t *testing.T) {
	s := New(Options{})
	prompt := func(tools string) string {
		_, prompt, err := s.render([]byte(`{"tools":` + tools + `,"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return prompt
	}
	plain := prompt(`[{"type":"function","function":{"name":"a","description":"d","parameters":{"z":1,"a":2.0}}}]`)
	same := prompt(`[{"function":{"strict":true,"parameters":{"z":1, "a":2.0},"description":"d","name":"a"},"x":1,"type":"function"}]`)
	if plain != same {
		t.Errorf("%s\n%s", plain, same)
	}
	if !strings.Contains(plain, `"parameters": {"z": 1, "a": 2.0}`) {
		t.Error(plain)
	}
}

func TestImages_CostWhatTheyAreSaidTo(t *testing.T) {
	s := New(Options{ImageTokens: 300})
	body := `{"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`
	with, err := s.PromptTokens([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	without, err := s.PromptTokens([]byte(chatBody("", "user", "see")))
	if err != nil || with-without != 300 {
		t.Errorf("an image costs %d tokens (%v)", with-without, err)
	}
}
