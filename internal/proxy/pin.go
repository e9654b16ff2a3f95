package proxy

import (
	"bytes"
	"time"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// replayPins puts the bytes with which a message was forwarded before in place of
// the client's new version, which differs only in what the fingerprint leaves
// out: a date that moved on, reasoning that was dropped. What is to be pinned of
// this request is collected in ex.pins.
func (ex *exchange) replayPins() (changed bool) {
	p := ex.p
	ex.pins = nil
	if !p.pin || ex.mode != config.ModeOn {
		return false
	}
	known := p.index.Pins(ex.conv)
	covered := len(ex.originals) - (len(ex.entries) - ex.replayed)
	for i := covered; i < len(ex.originals); i++ {
		m, chain := &ex.originals[i], ex.chain[i+1]
		pin, ok := known[chain]
		if !ok {
			if m.Volatile() {
				ex.pins = append(ex.pins, conversation.Pin{N: i + 1, Chain: chain, Raw: m.Raw()})
			}
			continue
		}
		if bytes.Equal(pin.Raw, m.Raw()) {
			continue
		}
		was, err := transcript.ParseMessage(pin.Raw)
		if err != nil || !transcript.SameIDs(&was, m) {
			continue
		}
		ex.entries[ex.replayed+i-covered].Message = was
		changed = true
	}
	if changed {
		ex.did("pin")
	}
	return changed
}

// pin stores the bytes of messages that a client may change next time, before the
// request leaves. An agent's own request pins nothing: it does not go on.
func (ex *exchange) pin() {
	covered := 0
	if ex.checkpoint != nil {
		covered = ex.checkpoint.N
	}
	var pins []conversation.Pin
	for _, pin := range ex.pins {
		if pin.N > covered { // a compaction of this request may cover it by now
			pin.Raw = bytes.Clone(pin.Raw)
			pins = append(pins, pin)
		}
	}
	ex.pins = nil
	if len(pins) == 0 || ex.side {
		return
	}
	start := time.Now()
	ex.p.index.Pin(ex.conv, pins)
	ex.p.metrics.Stage(metrics.StageStore, start)
}
