package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sample = `2024-01-01 Opening
    assets:bank:checking   1_000.00 EUR
    equity:opening

2024-01-05 * Kornblatt Bakery ; ref:A17
    expenses:food:bread       6.40 EUR
    assets:bank:checking
`

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRun(t *testing.T) {
	file := write(t, "test.journal", sample)
	tests := []struct {
		name string
		args []string
		code int
		out  string
		err  string
	}{
		{"no arguments", nil, 2, "", "usage: ledger COMMAND"},
		{"unknown command", []string{"frobnicate"}, 2, "", `unknown command "frobnicate"`},
		{"missing file name", []string{"check"}, 2, "", "check needs FILE"},
		{"missing file", []string{"check", "no-such-file"}, 1, "", "no such file"},
		{"bad date", []string{"balance", "-from", "yesterday", file}, 2, "", "not a date"},
		{"check", []string{"check", file}, 0, "2 transactions, 3 accounts, no problems\n", ""},
		{"accounts", []string{"accounts", file}, 0, "equity:opening\n", ""},
		{"balance", []string{"balance", "-depth", "1", file}, 0, "993.60  EUR  assets\n", ""},
		{"register", []string{"register", file, "expenses"}, 0, "6.40 EUR  6.40 EUR\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(tt.args, &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d\n%s", code, tt.code, stderr.String())
			}
			if !strings.Contains(stdout.String(), tt.out) {
				t.Errorf("stdout:\n%s\nwant: %s", stdout.String(), tt.out)
			}
			if !strings.Contains(stderr.String(), tt.err) {
				t.Errorf("stderr:\n%s\nwant: %s", stderr.String(), tt.err)
			}
		})
	}
}

func TestRun_ImportLeavesOutWhatIsThere(t *testing.T) {
	file := write(t, "test.journal", sample)
	export := write(t, "export.csv", `Date,Counterparty,Purpose,Amount,Currency,Reference
2024-01-05,Kornblatt Bakery,Card payment,-6.40,EUR,A17
2024-01-31,Northwind Ltd,Salary,2850.00,EUR,A18
`)
	var stdout, stderr bytes.Buffer
	if code := run([]string{"import", "-v", file, export}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if !strings.HasPrefix(stdout.String(), "; 2 rows, 1 new\n2024-01-31 * Northwind Ltd") {
		t.Errorf("got\n%s", stdout.String())
	}
}
