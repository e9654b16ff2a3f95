package proxy

import (
	"bytes"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// eventReader cuts a stream of server-sent events at its blank lines.
type eventReader struct {
	r   io.Reader
	buf []byte // read and not yet given out
	err error
}

// next returns one event with its blank line, or what is left when the stream
// ends or an event grows past [maxLine]; whole tells which. The slice is valid
// until the next call.
func (e *eventReader) next() (event []byte, whole bool, err error) {
	from := 0
	for {
		if end := eventEnd(e.buf, from); end > 0 {
			return e.take(end), true, nil
		}
		if len(e.buf) > maxLine || e.err != nil {
			if len(e.buf) > 0 {
				return e.take(len(e.buf)), false, nil
			}
			return nil, false, e.err
		}
		from = max(len(e.buf)-4, 0)
		if err := e.fill(); err != nil {
			e.err = err
		}
	}
}

// ready returns every whole event that has been read, and waits for one like
// next where there is none.
func (e *eventReader) ready() (events []byte, whole bool, err error) {
	event, whole, err := e.next()
	if err != nil || !whole {
		return event, whole, err
	}
	end := 0
	for from := 0; ; from = end {
		n := eventEnd(e.buf, from)
		if n == 0 {
			break
		}
		end = n
	}
	if end == 0 {
		return event, true, nil
	}
	// The events lie side by side: what follows event in memory is e.buf.
	e.take(end)
	return event[:len(event)+end], true, nil
}

func (e *eventReader) take(n int) []byte {
	out := e.buf[:n]
	e.buf = e.buf[n:]
	return out
}

func (e *eventReader) fill() error {
	const piece = 16 << 10
	if cap(e.buf)-len(e.buf) < piece/4 {
		e.buf = append(make([]byte, 0, len(e.buf)+piece), e.buf...)
	}
	n, err := e.r.Read(e.buf[len(e.buf):cap(e.buf)])
	e.buf = e.buf[:len(e.buf)+n]
	if n == 0 && err == nil {
		return nil
	}
	return err
}

// eventEnd is the offset behind the first blank line at or after from, 0 if
// there is none. A line ends with LF, CR LF or CR.
func eventEnd(b []byte, from int) int {
	for i := from; i < len(b); {
		n := lineEnd(b, i)
		if n == 0 {
			i++
			continue
		}
		m := lineEnd(b, i+n)
		// Half of a CR LF may have come: wait for the rest where lines end so.
		if half := i+n+m == len(b) && m == 1 && b[i+n] == '\r' && b[i+n-1] == '\n'; m > 0 && !half {
			return i + n + m
		}
		i += n
	}
	return 0
}

// lineEnd is the length of the line end at i, 0 if there is none.
func lineEnd(b []byte, i int) int {
	switch {
	case i >= len(b) || b[i] != '\n' && b[i] != '\r':
		return 0
	case b[i] == '\r' && i+1 < len(b) && b[i+1] == '\n':
		return 2
	}
	return 1
}

// eventData returns the payload of an event's data line, nil for comments. Some
// servers wrote "error: {…}" instead of a data line.
func eventData(event []byte) []byte {
	for line := range bytes.Lines(event) {
		line = bytes.TrimSpace(line)
		if p, ok := dataPayload(line); ok {
			return p
		}
		if p, ok := bytes.CutPrefix(line, []byte("error:")); ok {
			return bytes.TrimSpace(p)
		}
	}
	return nil
}

// reidentify gives a chunk the id and created that were sent first: SDK
// accumulators want one id in one stream. Everything else keeps its bytes.
func reidentify(event []byte, id string, created int64) []byte {
	payload := eventData(event)
	if len(payload) == 0 || payload[0] != '{' {
		return event
	}
	start := bytes.Index(event, payload)
	d := jsontext.NewDecoder(bytes.NewBuffer(payload), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	out := append([]byte(nil), event[:start]...)
	done := 0
	if _, err := d.ReadToken(); err != nil {
		return event
	}
	for d.PeekKind() == '"' {
		key, err := d.ReadToken()
		if err != nil {
			return event
		}
		name := key.String()
		v, err := d.ReadValue()
		if err != nil {
			return event
		}
		end := int(d.InputOffset())
		switch name {
		case "id":
			out = append(out, payload[done:end-len(v)]...)
			out, _ = jsontext.AppendQuote(out, id)
			done = end
		case "created":
			out = append(out, payload[done:end-len(v)]...)
			out = strconv.AppendInt(out, created, 10)
			done = end
		}
	}
	out = append(out, payload[done:]...)
	return append(out, event[start+len(payload):]...)
}
