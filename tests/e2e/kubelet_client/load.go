package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gogo/protobuf/jsonpb"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Source: k8s.io/kubernetes/pkg/kubelet/kubelet.go, eventedPlegMaxStreamRetries.
const eventedPLEGAttempts = 5

// order is what tests/restarts/orders.py writes, on one line of stdin.
type order struct {
	Name      string          `json:"name"`
	Label     string          `json:"label"`
	SandboxID string          `json:"sandbox_id"`
	Sandbox   json.RawMessage `json:"sandbox"`
	Container json.RawMessage `json:"container"`
	Lists     int             `json:"lists"`
	Statuses  int             `json:"statuses"`
	Creates   int             `json:"creates"`
	Events    bool            `json:"events"`
	PaceMs    int             `json:"pace_ms"`
}

type loader struct {
	*session
	order
	ended  chan struct{}
	output sync.Mutex
	number atomic.Uint32
}

// load calls until stdin ends and prints a line when a call begins, when it has ended, for each created
// container and for each event.
func load(s *session, _ []string) (any, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	l := &loader{session: &session{ctx, s.runtime, s.images}, ended: make(chan struct{})}
	input := bufio.NewReader(os.Stdin)
	line, err := input.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, &l.order); err != nil {
		return nil, err
	}
	callers := l.start()
	_, _ = io.Copy(io.Discard, input)
	close(l.ended)
	callers.Wait()
	return nil, nil
}

func (l *loader) start() *sync.WaitGroup {
	callers := &sync.WaitGroup{}
	run := func(kind string, count int, turn func(string)) {
		for number := range count {
			worker := fmt.Sprintf("%s-%d", kind, number+1)
			callers.Add(1)
			go func() {
				defer callers.Done()
				for !l.isOver() {
					turn(worker)
					l.pause()
				}
			}()
		}
	}
	run("list", l.Lists, l.list)
	run("status", l.Statuses, l.status)
	run("create", l.Creates, l.create)
	if l.Events {
		// No caller waits for its end: it ends with the program.
		go l.watchEvents()
	}
	return callers
}

func (l *loader) list(worker string) {
	l.call(worker, "ListPodSandbox", func() error {
		_, err := l.runtime.ListPodSandbox(l.ctx, nil)
		return err
	})
	l.call(worker, "ListContainers", func() error {
		_, err := l.runtime.ListContainers(l.ctx, nil)
		return err
	})
}

func (l *loader) status(worker string) {
	l.call(worker, "Status", func() error {
		_, err := l.runtime.Status(l.ctx, false)
		return err
	})
	l.call(worker, "PodSandboxStatus", func() error {
		_, err := l.runtime.PodSandboxStatus(l.ctx, l.SandboxID, false)
		return err
	})
}

// create makes a container, looks how often it is there and with which values, and removes it.
func (l *loader) create(worker string) {
	number := l.number.Add(1)
	name := fmt.Sprintf("%s-%d", l.Name, number)
	var id string
	code := l.call(worker, "CreateContainer", func() error {
		sandbox, container, err := l.configs(number, name)
		if err != nil {
			return err
		}
		id, err = l.runtime.CreateContainer(l.ctx, l.SandboxID, container, sandbox)
		return err
	})
	found := l.find(worker, name)
	line := map[string]any{"kind": "created", "name": name, "code": code, "listed": len(found), "cpu_shares": 0}
	if code == "OK" {
		line["cpu_shares"] = l.shares(worker, id)
	}
	l.print(line)
	for _, container := range found {
		l.until(worker, "RemoveContainer", func() error {
			return l.runtime.RemoveContainer(l.ctx, container.Id)
		})
	}
}

func (l *loader) configs(number uint32, name string) (*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig, error) {
	sandbox, container := &runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{}
	if err := jsonpb.Unmarshal(bytes.NewReader(l.Sandbox), sandbox); err != nil {
		return nil, nil, err
	}
	if err := jsonpb.Unmarshal(bytes.NewReader(l.Container), container); err != nil {
		return nil, nil, err
	}
	container.Metadata.Attempt = number
	container.Labels[l.Label] = name
	return sandbox, container, nil
}

func (l *loader) find(worker, name string) (found []*runtimeapi.Container) {
	filter := &runtimeapi.ContainerFilter{LabelSelector: map[string]string{l.Label: name}}
	l.until(worker, "ListContainers", func() (err error) {
		found, err = l.runtime.ListContainers(l.ctx, filter)
		return err
	})
	return found
}

func (l *loader) shares(worker, id string) (shares int64) {
	l.until(worker, "ContainerStatus", func() error {
		answer, err := l.runtime.ContainerStatus(l.ctx, id, false)
		if err == nil {
			shares = answer.GetStatus().GetResources().GetLinux().GetCpuShares()
		}
		return err
	})
	return shares
}

// watchEvents tries again without a rest as long as the kubelet would: five times since the last event.
func (l *loader) watchEvents() {
	received := make(chan *runtimeapi.ContainerEventResponse, 1000)
	var failures atomic.Uint32
	go func() {
		for event := range received {
			failures.Store(0)
			l.print(map[string]any{"kind": "event", "at": now(), "container_id": event.ContainerId})
		}
	}()
	for !l.isOver() {
		l.call("events", "GetContainerEvents", func() error {
			return l.runtime.GetContainerEvents(l.ctx, received, nil)
		})
		if failures.Add(1) >= eventedPLEGAttempts {
			l.pause()
		}
	}
}

// until repeats a call until it succeeds or the load ends.
func (l *loader) until(worker, method string, run func() error) {
	for l.call(worker, method, run) != "OK" && !l.isOver() {
		l.pause()
	}
}

func (l *loader) call(worker, method string, run func() error) string {
	begun := now()
	l.print(map[string]any{"kind": "begun", "worker": worker, "method": method, "at": begun})
	outcome := describe(run())
	outcome["kind"], outcome["worker"], outcome["method"] = "call", worker, method
	outcome["begun"], outcome["ended"] = begun, now()
	l.print(outcome)
	return outcome["code"].(string)
}

func (l *loader) print(line any) {
	l.output.Lock()
	defer l.output.Unlock()
	emit(line)
}

func (l *loader) pause() {
	select {
	case <-l.ended:
	case <-time.After(time.Duration(l.PaceMs) * time.Millisecond):
	}
}

func (l *loader) isOver() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// now is the clock that Python calls time.monotonic, in seconds.
func now() float64 {
	var moment unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &moment); err != nil {
		panic(err)
	}
	return float64(moment.Nano()) / 1e9
}
