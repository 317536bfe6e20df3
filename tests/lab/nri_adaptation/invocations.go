package main

import (
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
)

// invocation is what one plugin did with a call.
type invocation struct {
	Call    string  `json:"call"`
	Plugin  string  `json:"plugin"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// invocations keeps what plugins do until it is printed with the call's answer.
type invocations struct {
	lock    sync.Mutex
	made    []invocation
	count   int
	onCount func(int)
}

var _ adaptation.Metrics = (*invocations)(nil)

// RecordPluginLatency comes before the error of the same invocation.
func (i *invocations) RecordPluginLatency(plugin, call string, latency time.Duration) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.made = append(i.made, invocation{Call: call, Plugin: plugin, Seconds: latency.Seconds()})
}

func (i *invocations) RecordPluginInvocation(plugin, call string, err error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	for at := len(i.made) - 1; at >= 0 && err != nil; at-- {
		if i.made[at].Plugin == plugin && i.made[at].Call == call {
			i.made[at].Error = err.Error()
			return
		}
	}
}

func (i *invocations) RecordPluginAdjustments(
	_, _ string, _ *adaptation.ContainerAdjustment, _, _ int,
) {
}

func (i *invocations) UpdatePluginCount(count int) {
	i.lock.Lock()
	changed := count != i.count
	i.count = count
	i.lock.Unlock()
	if changed {
		i.onCount(count)
	}
}

// take returns the invocations of calls, and forgets them.
func (i *invocations) take(calls ...string) []invocation {
	i.lock.Lock()
	defer i.lock.Unlock()
	var taken []invocation
	i.made = slices.DeleteFunc(i.made, func(made invocation) bool {
		isTaken := slices.Contains(calls, made.Call)
		if isTaken {
			taken = append(taken, made)
		}
		return isTaken
	})
	return taken
}
