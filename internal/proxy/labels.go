package proxy

import (
	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/pairing"
)

// MetricLabels are the label values that the packages below own.
func MetricLabels() metrics.Labels {
	var l metrics.Labels
	for _, pass := range compaction.Passes {
		l.Passes = append(l.Passes, string(pass))
	}
	for _, kind := range pairing.Kinds {
		l.ViolationKinds = append(l.ViolationKinds, string(kind))
	}
	return l
}
