package proxy

import (
	"log"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// NewTransport returns the transport for the server: no deadline on an answer,
// since a prefill takes what it takes, and no compression of its own, so that
// what a client asked for is what the server is asked for.
//
// Every request has a connection of its own. llama-server closes one behind a
// streamed answer without saying so, and whatever is sent on it next is lost
// (build 11669: the second request fails at once); net/http repeats only requests
// without a body. It would also quote bytes that come unasked on an idle
// connection to the standard logger.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		DisableCompression:    true,
		DisableKeepAlives:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
}

// quietLog is for net/http's own complaints. They quote what a client or the
// server sent, so only their number can be told.
func quietLog(l *zap.Logger) *log.Logger {
	return log.New(writerFunc(func(b []byte) (int, error) {
		l.Debug("net/http reported an error; its text may quote content and is not shown")
		return len(b), nil
	}), "", 0)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// NewServer returns a server for one of our listeners: no deadline on writing,
// since a stream lasts as long as it lasts.
func NewServer(h http.Handler, l *zap.Logger) *http.Server {
	return &http.Server{
		Handler:                      h,
		ReadHeaderTimeout:            30 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is the server's to answer
		ErrorLog:                     quietLog(l),
	}
}
