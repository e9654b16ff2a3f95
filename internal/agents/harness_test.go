package agents

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHarness(t *testing.T) {
	tests := []struct {
		name, text, own string
		injected        []string
	}{
		{"nothing injected", "fix <b>it</b>", "fix <b>it</b>", nil},
		{"qwen-code's date", "<system-reminder>\nThe current date is: Monday.\n</system-reminder>\nfix it", "fix it", []string{"<system-reminder>\nThe current date is: Monday.\n</system-reminder>"}},
		{"goose's context behind the words", "fix it\n\n<turn-context>\nplan: none\n</turn-context>", "fix it", []string{"<turn-context>\nplan: none\n</turn-context>"}},
		{"two in one text", "a <info-msg>x</info-msg> b <system-reminder>y</system-reminder> c", "a  b  c", []string{"<info-msg>x</info-msg>", "<system-reminder>y</system-reminder>"}},
		{"only injected", "<turn-context>x</turn-context>", "", []string{"<turn-context>x</turn-context>"}},
		{"a block that never ends is the user's", "what does <system-reminder> mean", "what does <system-reminder> mean", nil},
		{"the order of ends does not matter", "<info-msg>a <system-reminder>b</system-reminder> c</info-msg> d", "d", []string{"<info-msg>a <system-reminder>b</system-reminder> c</info-msg>"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			own, injected := Harness(tt.text)
			if diff := cmp.Diff(tt.own, own); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.injected, injected); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := Labelled("do\n<turn-context>x</turn-context>"); got != "do\n[harness] <turn-context>x</turn-context>" {
		t.Errorf("labelled %q", got)
	}
}
