package main

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/compactproxy/compactproxy/internal/config"
)

// newLogger writes to w, one line an entry. Nothing is sampled: each line is a
// decision that somebody may look for.
func newLogger(c config.Log, w io.Writer) *zap.Logger {
	level, err := zapcore.ParseLevel(string(c.Level))
	if err != nil {
		panic("BUG: an invalid log.level passed the configuration's check: " + err.Error())
	}
	e := zap.NewProductionEncoderConfig()
	e.EncodeTime = zapcore.ISO8601TimeEncoder
	e.EncodeDuration = zapcore.StringDurationEncoder
	e.CallerKey = ""
	encoder := zapcore.NewJSONEncoder(e)
	if c.Format == config.LogConsole {
		e.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(e)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(w), level))
}
