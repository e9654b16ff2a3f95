package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/compactproxy/compactproxy/internal/store"
)

func newRecall() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recall QUERY",
		Short: "Search what compactions took out of conversations",
		Long: `Recall searches the archive: every text that a compaction replaced, in full. All words of the query must occur;
"words in quotes" must stand together, a word* stands for every word that begins so, and a text's SHA-256 finds
that text. Where not one text has all the words, those with some of them are shown.

The serve that has the store of this configuration (state.path) is asked; without one the store is opened. --admin asks
the serve at that address, whatever its store: the demo's, for one. The archive indexes texts in the background, so the
newest may take a moment.`,
		Example: `  compactproxy recall store.py
  compactproxy recall '"connection refused" port'
  compactproxy recall --conversation 3f2a9c0d11e4 --json budget
  compactproxy recall --full 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || strings.TrimSpace(strings.Join(args, "")) == "" {
				return usagef(cmd, "recall needs something to look for")
			}
			return nil
		},
	}
	settings := addSettings(cmd)
	in := cmd.Flags().String("conversation", "", "only in the conversation with this `ID`")
	limit := cmd.Flags().Int("limit", 20, "at most this many texts")
	asJSON := cmd.Flags().Bool("json", false, "print JSON, as the API answers it")
	full := cmd.Flags().Bool("full", false, "the query is a SHA-256: print that text, whole")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *limit < 1 || *limit > 200 {
			return usagef(cmd, "--limit: from 1 to 200 (got %d)", *limit)
		}
		cfg, err := settings.load()
		if err != nil {
			return err
		}
		a, err := openArchive(cfg, settings.flags.Changed("admin"))
		if err != nil {
			return err
		}
		defer a.Close()
		query := strings.Join(args, " ")
		if *full {
			text, err := a.text(cmd.Context(), strings.TrimPrefix(query, "sha256:"))
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		}
		hits, err := a.recall(cmd.Context(), store.Query{Text: query, Conversation: *in, Limit: *limit})
		if err != nil {
			return err
		}
		if *asJSON {
			out := json.NewEncoder(cmd.OutOrStdout())
			out.SetIndent("", "  ")
			return out.Encode(map[string]any{"hits": hits})
		}
		return printHits(cmd.OutOrStdout(), hits)
	}
	return cmd
}

func printHits(w io.Writer, hits []store.Hit) error {
	if len(hits) == 0 {
		_, err := fmt.Fprintln(w, "nothing found")
		return err
	}
	for i, h := range hits {
		if i > 0 {
			fmt.Fprintln(w)
		}
		from := h.Role
		if h.Tool != "" {
			from = "result of " + h.Tool
		}
		label := ""
		if h.Session != "" {
			label = " (" + printable(h.Session) + ")"
		}
		fmt.Fprintf(w, "%s%s  message %d, %s, %d bytes, archived %s\n", h.Conversation, label, h.N, printable(from), h.Bytes, h.At.Format(time.RFC3339))
		fmt.Fprintf(w, "sha256:%s\n", h.Hash)
		for line := range strings.Lines(h.Excerpt) {
			fmt.Fprintf(w, "    %s\n", printable(strings.TrimRight(line, "\r\n")))
		}
	}
	return nil
}

// printable takes out what could steer a terminal: the texts are other people's.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, s)
}

func newForget() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget ID",
		Short: "Remove a conversation and everything that was archived of it",
		Long: `Forget removes a conversation from the store: its checkpoints, its turns and its archived texts, unless another
conversation needs them. X-Compactproxy-Conversation and the log name its ID. It cannot be undone; if the
agent goes on with that conversation, the proxy knows it as a new one.

The serve that has the store of this configuration (state.path) is asked; without one the store is opened. --admin asks
the serve at that address, whatever its store.`,
		Example: `  compactproxy forget 3f2a9c0d11e4`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "forget needs the ID of one conversation")
			}
			return nil
		},
	}
	settings := addSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := settings.load()
		if err != nil {
			return err
		}
		a, err := openArchive(cfg, settings.flags.Changed("admin"))
		if err != nil {
			return err
		}
		defer a.Close()
		if err := a.forget(cmd.Context(), args[0]); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "forgot %s\n", printable(args[0]))
		return nil
	}
	return cmd
}

// query encodes what recall asks the API.
func query(q store.Query) url.Values {
	v := url.Values{"q": {q.Text}, "limit": {fmt.Sprint(q.Limit)}}
	if q.Conversation != "" {
		v.Set("conversation", q.Conversation)
	}
	return v
}
