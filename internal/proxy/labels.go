package proxy

import (
	"github.com/compactproxy/compactproxy/internal/cachelens"
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
	for _, kind := range compaction.Kinds {
		l.Kinds = append(l.Kinds, string(kind))
	}
	l.Styles = []string{string(compaction.StyleExtend), string(compaction.StyleProse)}
	for _, reason := range compaction.Rejections {
		l.Rejections = append(l.Rejections, string(reason))
	}
	for _, reason := range cachelens.Reasons {
		l.MissReasons = append(l.MissReasons, string(reason))
	}
	for _, kind := range pairing.Kinds {
		l.ViolationKinds = append(l.ViolationKinds, string(kind))
	}
	return l
}
