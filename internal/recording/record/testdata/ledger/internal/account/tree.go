// Package account arranges postings in a tree of accounts.
package account

import (
	"slices"
	"strings"

	"example.com/ledger/internal/journal"
	"example.com/ledger/internal/money"
)

// Node is an account with the sum of its own postings and its children.
type Node struct {
	Name     string // the last part
	Path     string // the whole path
	Depth    int    // 1 for the accounts at the top
	Own      money.Sum
	Children []*Node
	parent   *Node
}

// Tree is all accounts of some transactions. Its root has no name.
type Tree struct {
	Root  *Node
	nodes map[string]*Node
}

// Build adds up the postings of the transactions, account by account.
func Build(list []*journal.Transaction) *Tree {
	t := &Tree{Root: &Node{}, nodes: make(map[string]*Node)}
	for _, tr := range list {
		for _, p := range tr.Postings {
			t.node(p.Account).Own.Add(p.Amount)
		}
	}
	t.Root.sort()
	return t
}

// node finds an account or makes it, with all accounts above it.
func (t *Tree) node(path string) *Node {
	if path == "" {
		return t.Root
	}
	if n, ok := t.nodes[path]; ok {
		return n
	}
	above, name := "", path
	if i := strings.LastIndexByte(path, ':'); i >= 0 {
		above, name = path[:i], path[i+1:]
	}
	parent := t.node(above)
	n := &Node{Name: name, Path: path, Depth: parent.Depth + 1, parent: parent}
	parent.Children = append(parent.Children, n)
	t.nodes[path] = n
	return n
}

func (n *Node) sort() {
	slices.SortFunc(n.Children, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range n.Children {
		c.sort()
	}
}

// Find returns an account by its path, or nil.
func (t *Tree) Find(path string) *Node {
	return t.nodes[path]
}

// Total is the account's own sum and everything below it.
func (n *Node) Total() money.Sum {
	total := n.Own.Clone()
	for _, c := range n.Children {
		total.AddSum(c.Own)
		total.AddSum(c.Total())
	}
	return total
}

// Parent returns the account above, or nil at the top.
func (n *Node) Parent() *Node {
	if n.parent == nil || n.parent.Path == "" {
		return nil
	}
	return n.parent
}

// Walk visits the accounts from the top down, children in alphabetical order.
// Where visit returns false the children are left out.
func (t *Tree) Walk(visit func(*Node) bool) {
	for _, n := range t.Root.Children {
		n.walk(visit)
	}
}

func (n *Node) walk(visit func(*Node) bool) {
	if !visit(n) {
		return
	}
	for _, c := range n.Children {
		c.walk(visit)
	}
}
