// Package topology stands in for the nested module of nri-plugins, which is published nowhere: no device is near to
// any CPU.
package topology

import "errors"

var errNone = errors.New("no device has a place")

// Hint is where a device is.
type Hint struct {
	Provider string
	CPUs     string
	NUMAs    string
	Sockets  string
}

// Hints are those of several devices, by provider.
type Hints map[string]Hint

// SetLogger does nothing.
func SetLogger(_ any) {}

// SetSysRoot does nothing.
func SetSysRoot(_ string) {}

// NewTopologyHints has none.
func NewTopologyHints(_ string) (Hints, error) { return Hints{}, nil }

// MergeTopologyHints keeps what containers ask for themselves.
func MergeTopologyHints(first, second Hints) Hints {
	merged := Hints{}
	for _, hints := range []Hints{first, second} {
		for provider, hint := range hints {
			merged[provider] = hint
		}
	}
	return merged
}

// FindSysFsDevice finds none.
func FindSysFsDevice(_ string) (string, error) { return "", errNone }

// FindGivenSysFsDevice finds none.
func FindGivenSysFsDevice(_ string, _, _ int64) (string, error) { return "", errNone }
