package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // to look at the file without the store

	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/store"
)

// fewCrashes take some seconds.
const fewCrashes = 12

var (
	crashes   = flag.Int("crashes", fewCrashes, "sessions in which the proxy is killed")
	crashSeed = flag.Uint64("crash-seed", 1, "seed of what is random in them, the machine's own timing aside")
)

// TestCrash plays sessions through a real process that keeps its state in a real
// file, kills it at random moments and starts it again: every session goes on, what
// goes out extends what went out before byte for byte, a rewritten list has not
// left before it was stored, the store opens clean, and everything that was
// replaced is found by its hash. "make crash" does it 200 times, with the corpus
// where there is one.
func TestCrash(t *testing.T) {
	var sessions []*playedSession
	if *crashes <= fewCrashes {
		sessions = ownSessions(t, []int{8192}, 12)
	} else {
		windows := []int{16384, 8192}
		sessions = ownSessions(t, windows, 80)
		t.Run("corpus", func(t *testing.T) { // skips itself where there is none
			sessions = append(sessions, corpusSessions(t, windows)...)
		})
	}
	sum := tally{n: map[string]int{}}
	t.Run("run", func(t *testing.T) {
		for i := range *crashes {
			rng := rand.New(rand.NewPCG(*crashSeed, uint64(i)))
			session := sessions[rng.IntN(len(sessions))]
			t.Run(fmt.Sprintf("%03d-%s", i, session.name), func(t *testing.T) {
				t.Parallel()
				newCrash(t, session, rng, &sum).play(t, moments[i%len(moments)])
			})
		}
	})
	t.Log(sum.String())
}

// What is counted. A kill is counted by how far the turn had come.
const (
	ranSessions   = "sessions"
	ranTurns      = "turns answered"
	ranRestarts   = "kills and restarts"
	ranCompaction = "compactions"
	sameList      = "lists sent again after a kill, byte for byte"
	sameReplay    = "checkpoints replayed after a restart, byte for byte"
	sameBytes     = "bytes of those"
	sameID        = "conversations that kept their id over a restart"
	foundTexts    = "replaced texts found by their hash"
	noMoment      = "moments that did not come"

	killedBefore  = "before the commit"
	killedBetween = "between commit and forward"
	killedSent    = "with the rewritten list at the server"
	killedPlain   = "in a turn that compacts nothing"
	killedBehind  = "behind the answer"
)

// tally is what happened in all sessions.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *tally) add(what string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n[what] += n
}

// killed counts a kill at a moment, by how far the turn had come.
func (s *tally) killed(m moment, how string) {
	s.add(how, 1)
	s.add(string(m)+": "+how, 1)
}

func (s *tally) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, what := range []string{ranSessions, ranTurns, ranCompaction, ranRestarts} {
		fmt.Fprintf(&b, "\n%6d %s", s.n[what], what)
	}
	for _, how := range []string{killedBefore, killedBetween, killedSent, killedPlain, killedBehind} {
		fmt.Fprintf(&b, "\n%6d of the kills %s", s.n[how], how)
		for _, m := range slices.Compact(slices.Sorted(slices.Values(moments))) {
			if n := s.n[string(m)+": "+how]; n > 0 {
				fmt.Fprintf(&b, "\n              %4d %s", n, m)
			}
		}
	}
	for _, what := range []string{noMoment, sameList, sameReplay, sameBytes, sameID, foundTexts} {
		fmt.Fprintf(&b, "\n%6d %s", s.n[what], what)
	}
	return b.String()
}

// crash is one session before a proxy that is killed.
type crash struct {
	*playedSession
	sum      *tally
	rng      *rand.Rand
	upstream *crashUpstream
	state    string // the folder
	summary  bool   // the model writes some; else the steps that need no model go on
	stream   bool
	forgets  bool // see playedSession.body
	process  *process
	waited   bool          // until it had found the server
	took     time.Duration // the last turn

	id          string
	last        [][]byte     // forwarded for the last turn that was answered
	leading     int          // system messages that open the list
	replaced    map[int]bool // messages that were not in a list as a compaction left it
	compactions int
	logged      int // compactions that the logs tell of, or that were in the store at the last start

	// Of a turn that was interrupted, until it is answered.
	sent      *arrival // the last list that the server has read
	committed bool     // a checkpoint was stored in it
	pending   []moment // of kills before that

	// Until a turn is answered after a restart.
	resumed  bool
	newest   store.Compaction
	replayed []json.RawMessage // the newest checkpoint as the API shows it, nil for none
}

func newCrash(t *testing.T, s *playedSession, rng *rand.Rand, sum *tally) *crash {
	t.Helper()
	return &crash{
		playedSession: s, sum: sum, rng: rng, upstream: startCrashUpstream(t, s.window, rng), state: t.TempDir(),
		summary: rng.IntN(3) > 0, stream: rng.IntN(4) > 0, forgets: rng.IntN(3) == 0, took: 50 * time.Millisecond, replaced: map[int]bool{},
	}
}

// play plays the session and kills the proxy once to three times, first at that
// moment.
func (c *crash) play(t *testing.T, m moment) {
	c.start(t, true)
	t.Logf("window %d, %d turns, summaries %v, streams %v, forgets reasoning %v", c.window, len(c.ends), c.summary, c.stream, c.forgets)
	kills, from := 1+c.rng.IntN(3), c.rng.IntN(len(c.ends))
	if m.waits() {
		from /= 3
	}
	done := 0
	for turn := 0; turn < len(c.ends); {
		var armed moment
		if turn >= from && done < kills {
			armed = c.possible(m)
			if turn == len(c.ends)-1 && m.waits() && done == 0 {
				c.sum.add(noMoment, 1)
				armed = betweenTurns
			}
		}
		began := time.Now()
		a, struck := c.send(t, c.body(turn, c.stream, c.forgets), armed)
		if struck {
			done++
			m, from = moments[c.rng.IntN(len(moments))], turn+c.rng.IntN(6)
			c.restart(t, turn, a, armed, began)
		} else {
			c.answered(t, turn, a)
		}
		if a.whole {
			turn++
		}
		if c.rng.IntN(16) == 0 { // somebody looks at the page, which stores what waits
			c.conversations(t)
		}
	}
	c.finish(t)
}

// possible is a moment that this session may have.
func (c *crash) possible(m moment) moment {
	switch {
	case m == inAnswer && !c.stream:
		return inTurn
	case m == inSummary && !c.summary:
		return inCommit
	}
	return m
}

// start runs the program. An agent does not wait until it has found its server.
func (c *crash) start(t *testing.T, wait bool) {
	t.Helper()
	c.process = startProcess(t, c.state, c.upstream.URL, fmt.Sprintf("COMPACTPROXY_COMPACTION_SUMMARY_ENABLED=%v", c.summary))
	if c.waited = wait; wait {
		c.process.await(t, "found the server")
	}
}

// attempt is what the agent gets for a request.
type attempt struct {
	status int
	whole  bool
	action string
	id     string
	body   []byte
	err    error
	came   []*arrival
}

func (a *attempt) compacted() bool {
	return slices.ContainsFunc(strings.Split(a.action, ", "), func(action string) bool {
		return action == "passes" || action == "recovery" || action == "summary"
	})
}

// send sends a request, with the proxy killed at a moment of it. struck tells
// whether that moment came; the proxy is gone then.
func (c *crash) send(t *testing.T, body []byte, m moment) (a *attempt, struck bool) {
	t.Helper()
	c.upstream.arm(m, c.process.kill)
	begin := time.Now()
	if m == inTurn {
		time.AfterFunc(time.Duration(c.rng.Int64N(int64(c.took)*5/4)), c.process.kill)
	}
	a = c.post(t, body)
	if m == betweenTurns {
		time.AfterFunc(time.Duration(c.rng.Int64N(int64(50*time.Millisecond))), c.process.kill)
	}
	struck, a.came = c.upstream.over()
	if struck || m == inTurn || m == betweenTurns {
		<-c.process.done
		a.came = c.upstream.settle(t)
		return a, true
	}
	c.took = time.Since(begin)
	return a, false
}

// oneShot keeps no connection to a process that may be gone.
var oneShot = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// post is a request of the agent's. An error is part of the answer.
func (c *crash) post(t *testing.T, body []byte) *attempt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stuck)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.process.base+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := oneShot.Do(req)
	if err != nil {
		return &attempt{err: err}
	}
	defer res.Body.Close()
	a := &attempt{status: res.StatusCode, action: res.Header.Get("X-Compactproxy-Action"), id: res.Header.Get("X-Compactproxy-Conversation")}
	a.body, a.err = io.ReadAll(res.Body)
	a.whole = a.err == nil && a.status == http.StatusOK
	return a
}

// answered checks a turn that was answered, and what was forwarded for it.
func (c *crash) answered(t *testing.T, turn int, a *attempt) {
	t.Helper()
	if !a.whole {
		t.Fatalf("turn %d: status %d, %v: %.300s", turn, a.status, a.err, a.body)
	}
	c.sum.add(ranTurns, 1)
	forwards := c.forwards(t, turn, a)
	if len(forwards) == 0 {
		t.Fatalf("turn %d was answered, and the server had no request", turn)
	}
	c.sameAgain(t, turn, a, forwards[0])
	if c.sent != nil && c.sent.status == http.StatusOK && len(forwards) > 1 {
		t.Errorf("turn %d: the server took this list before the kill, and did not take it after it", turn)
	}
	final := forwards[len(forwards)-1]
	c.leading = final.leading
	list := raws(final.list)
	if c.resumed {
		c.resume(t, turn, a, raws(forwards[0].list))
	}
	how := killedPlain
	switch {
	case a.compacted() || c.committed:
		how = killedBefore
		c.compactions++
		c.noteReplaced(turn, list)
	case !extends(list, c.last):
		t.Errorf("turn %d: what is forwarded does not extend what was forwarded before (%s)", turn, a.action)
	}
	for _, m := range c.pending {
		c.sum.killed(m, how)
	}
	c.id, c.last = a.id, list
	c.sent, c.committed, c.pending = nil, false, nil
	c.upstream.answered(list)
}

// forwards checks the lists that came for a turn, and returns those that are not
// in requests of the proxy's own.
func (c *crash) forwards(t *testing.T, turn int, a *attempt) (forwards []*arrival) {
	t.Helper()
	for _, f := range a.came {
		if v := pairing.Check(f.list); v != nil {
			t.Errorf("turn %d: an illegal list was sent: %v", turn, v)
		}
		if !f.own {
			forwards = append(forwards, f)
		}
	}
	return forwards
}

// sameAgain checks the first request of a turn that was interrupted: where the
// server had taken one of it, it is the same.
func (c *crash) sameAgain(t *testing.T, turn int, a *attempt, first *arrival) {
	t.Helper()
	switch {
	case c.sent == nil:
	case bytes.Equal(first.body, c.sent.body):
		c.sum.add(sameList, 1)
	case c.sent.refused(): // what is made of it counts
	case c.sent.early: // without the window it was not known to be too long
	default:
		t.Errorf("turn %d: what is sent after the kill is not what was sent before it (%s): %s", turn, a.action, difference(raws(first.list), raws(c.sent.list)))
	}
}

func difference(now, before [][]byte) string {
	i := 0
	for i < min(len(now), len(before)) && bytes.Equal(now[i], before[i]) {
		i++
	}
	at := func(list [][]byte) []byte {
		if i < len(list) {
			return list[i]
		}
		return nil
	}
	return fmt.Sprintf("%d messages after %d, at %d now %.120q, before %.120q", len(now), len(before), i, at(now), at(before))
}

// resume checks the first turn that is answered after a restart: it is the same
// conversation, and goes on from the newest checkpoint as that was stored and as
// it was forwarded before.
func (c *crash) resume(t *testing.T, turn int, a *attempt, list [][]byte) {
	t.Helper()
	c.resumed = false
	if c.id != "" {
		if c.id != a.id {
			t.Errorf("turn %d: the conversation was %s and is %s", turn, c.id, a.id)
		}
		c.sum.add(sameID, 1)
	}
	if c.replayed == nil || a.compacted() {
		return
	}
	want := slices.Clone(c.messages[:c.leading])
	for _, m := range c.replayed {
		want = append(want, m)
	}
	covered := len(want)
	want = append(want, c.messages[c.leading+c.newest.N:c.ends[turn]]...)
	if len(list) != len(want) {
		t.Errorf("turn %d: %d messages after a restart, want %d", turn, len(list), len(want))
		return
	}
	n := 0
	for i, raw := range list {
		n += len(raw)
		switch {
		case i < c.leading || i >= covered: // the client's
			if !bytes.Equal(raw, want[i]) && !(c.forgets && bytes.Equal(raw, withReasoning(c.newest.N+i-covered+c.leading, want[i]))) {
				t.Errorf("turn %d: message %d is not the client's: %.200s", turn, i, raw)
			}
		default:
			shown, err := json.Marshal(json.RawMessage(raw)) // as the API writes it
			if err != nil || !bytes.Equal(shown, want[i]) {
				t.Errorf("turn %d: message %d is not the checkpoint's: %.200s", turn, i, raw)
			}
		}
	}
	if !c.committed && !extends(c.last, list[:covered]) {
		t.Errorf("turn %d: the checkpoint is not replayed as it was forwarded before the kill", turn)
	}
	c.sum.add(sameReplay, 1)
	c.sum.add(sameBytes, n)
}

// noteReplaced notes which of the client's messages are not in the list.
func (c *crash) noteReplaced(turn int, list [][]byte) {
	sent := map[string]bool{}
	for _, raw := range list {
		sent[string(raw)] = true
	}
	for i, raw := range c.messages[:c.ends[turn]] {
		if !sent[string(raw)] && !(c.forgets && sent[string(withReasoning(i, raw))]) {
			c.replaced[i] = true
		}
	}
}

// restart checks what a kill has left, and starts the proxy again.
func (c *crash) restart(t *testing.T, turn int, a *attempt, m moment, began time.Time) {
	t.Helper()
	c.sum.add(ranRestarts, 1)
	t.Logf("turn %d: killed %s; answered: %v, chat requests at the server: %s", turn, m, a.whole, shortly(a.came))
	c.readLog(t)
	c.id = cmp.Or(c.id, a.id)
	if a.whole {
		c.sum.killed(m, killedBehind)
		c.answered(t, turn, a)
	} else if a.err == nil {
		t.Errorf("turn %d: status %d before the kill: %.300s", turn, a.status, a.body)
	}
	early := !c.waited && c.resumed
	c.start(t, c.rng.IntN(4) > 0)
	list := c.stored(t)
	if len(list) < c.logged {
		t.Errorf("turn %d: %d compactions are in the store, the logs tell of %d", turn, len(list), c.logged)
	}
	c.logged = len(list)
	c.resumed, c.replayed = true, nil
	opened := c.process.await(t, "opened the store")
	if opened.Conversations == 0 {
		c.id = "" // it was not a second old, and nothing had been stored of it
	}
	fresh := false // a checkpoint was stored in this attempt
	if len(list) > 0 {
		if opened.Conversations == 0 {
			t.Errorf("turn %d: there are compactions and no conversation", turn)
		}
		c.newest = list[0]
		var shown struct{ After []json.RawMessage }
		get(t, fmt.Sprintf("%s/api/v1/compactions/%d", c.process.admin, c.newest.ID), &shown)
		c.replayed = shown.After
		fresh = !c.newest.Summary.At.Before(began.Round(0))
	}
	if !a.whole {
		c.interrupted(t, turn, a, m, fresh, early)
	}
}

// interrupted notes how far a turn came before the kill. fresh tells whether a
// checkpoint was stored in it, early whether the proxy may not have found its server yet.
func (c *crash) interrupted(t *testing.T, turn int, a *attempt, m moment, fresh, early bool) {
	t.Helper()
	c.committed = c.committed || fresh
	sent := false // the rewritten list was
	if forwards := c.forwards(t, turn, a); len(forwards) > 0 {
		c.sameAgain(t, turn, a, forwards[0])
		c.sent = forwards[len(forwards)-1]
		c.sent.early = early
		sent = !c.sent.refused() && c.last != nil && !extends(raws(c.sent.list), c.last)
	}
	switch {
	case sent && !c.committed:
		t.Errorf("turn %d: a rewritten list was sent before it was stored", turn)
	case sent:
		c.sum.killed(m, killedSent)
	case fresh:
		c.sum.killed(m, killedBetween)
	default: // whether there was a commit to come shows when the turn is answered
		c.pending = append(c.pending, m)
	}
}

func shortly(came []*arrival) string {
	var b strings.Builder
	for _, f := range came {
		fmt.Fprintf(&b, "[%d messages, for a summary: %v, status %d]", len(f.list), f.own, f.status)
	}
	return b.String()
}

func (c *crash) readLog(t *testing.T) {
	t.Helper()
	c.logged += c.process.check(t)
}

// finish looks up everything that was replaced, kills the proxy once more and looks
// at the file.
func (c *crash) finish(t *testing.T) {
	t.Helper()
	c.sum.add(ranSessions, 1)
	c.sum.add(ranCompaction, c.compactions)
	if c.compactions == 0 {
		t.Error("never compacted: it shows nothing")
	}
	compactions := c.stored(t)
	for _, k := range compactions {
		var shown struct{ Before, After []json.RawMessage }
		get(t, fmt.Sprintf("%s/api/v1/compactions/%d", c.process.admin, k.ID), &shown)
		if len(shown.Before) == 0 || len(shown.After) == 0 {
			t.Errorf("compaction %d has %d messages before and %d after", k.ID, len(shown.Before), len(shown.After))
		}
	}
	for _, i := range slices.Sorted(maps.Keys(c.replaced)) {
		for _, text := range texts(t, c.messages[i]) {
			sum := sha256.Sum256([]byte(text))
			hash := hex.EncodeToString(sum[:])
			var found struct{ Hits []store.Hit }
			get(t, c.process.admin+"/api/v1/recall?q="+hash+"&conversation="+c.id, &found)
			if len(found.Hits) != 1 || found.Hits[0].Hash != hash || found.Hits[0].Bytes != len(text) {
				t.Errorf("message %d was replaced, and its text is not found: %+v, %.200q", i, found.Hits, text)
				continue
			}
			c.sum.add(foundTexts, 1)
		}
	}

	c.process.end()
	c.readLog(t)
	if len(compactions) < c.logged {
		t.Errorf("%d compactions are in the store, the logs tell of %d", len(compactions), c.logged)
	}
	if files, err := filepath.Glob(filepath.Join(c.state, "*corrupt*")); err != nil || len(files) > 0 {
		t.Errorf("a damaged file was moved aside: %v %v", files, err)
	}
	db, err := sql.Open("sqlite", filepath.Join(c.state, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var answer string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&answer); err != nil || answer != "ok" {
		t.Errorf("integrity check: %s %v", answer, err)
	}
}

// conversations are the ids that the API lists.
func (c *crash) conversations(t *testing.T) (ids []string) {
	t.Helper()
	var answer struct{ Conversations []struct{ ID string } }
	get(t, c.process.admin+"/api/v1/conversations", &answer)
	for _, v := range answer.Conversations {
		ids = append(ids, v.ID)
	}
	return ids
}

// stored are the compactions in the store, the newest first.
func (c *crash) stored(t *testing.T) (list []store.Compaction) {
	t.Helper()
	for _, id := range c.conversations(t) {
		var answer struct{ Compactions []store.Compaction }
		get(t, c.process.admin+"/api/v1/conversations/"+id, &answer)
		list = append(list, answer.Compactions...)
	}
	slices.SortFunc(list, func(a, b store.Compaction) int { return cmp.Compare(b.ID, a.ID) })
	return list
}

// get reads a JSON answer, with nil for one that is of no interest.
func get(t *testing.T, address string, into any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stuck)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := oneShot.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %.300s", address, res.StatusCode, err, body)
	}
	if into != nil {
		if err := json.Unmarshal(body, into); err != nil {
			t.Fatalf("%s: %v", address, err)
		}
	}
}
