// Command nri-plugin is an NRI plugin that hears every event and, without flags, changes nothing. Each line of its
// stdin is an UpdateContainersRequest in JSON, which it makes; it prints the answer.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// plugin answers every event.
type plugin struct {
	adjustment *api.ContainerAdjustment
	rejection  string
	delay      time.Duration
	prints     bool
}

func (p *plugin) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	events := api.ValidEvents
	if runtime == "containerd" && strings.HasPrefix(version, "v1.") {
		// Its NRI refuses plugins that ask for events which it does not know.
		events.Clear(api.Event_UPDATE_POD_SANDBOX, api.Event_POST_UPDATE_POD_SANDBOX)
	}
	if p.rejection == "" {
		events.Clear(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	}
	return events, nil
}

func (p *plugin) Synchronize(
	_ context.Context, pods []*api.PodSandbox, containers []*api.Container,
) ([]*api.ContainerUpdate, error) {
	return nil, printed(map[string]any{"event": "Synchronize", "pods": ids(pods), "containers": ids(containers)})
}

func (p *plugin) CreateContainer(
	_ context.Context, pod *api.PodSandbox, container *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	time.Sleep(p.delay)
	return p.adjustment, nil, p.hear("CreateContainer", pod, container)
}

func (p *plugin) UpdateContainer(
	_ context.Context, pod *api.PodSandbox, container *api.Container, resources *api.LinuxResources,
) ([]*api.ContainerUpdate, error) {
	return nil, p.hear("UpdateContainer", pod, container, resources)
}

func (p *plugin) StopContainer(
	_ context.Context, pod *api.PodSandbox, container *api.Container,
) ([]*api.ContainerUpdate, error) {
	return nil, p.hear("StopContainer", pod, container)
}

func (p *plugin) ValidateContainerAdjustment(_ context.Context, _ *api.ValidateContainerAdjustmentRequest) error {
	return errors.New(p.rejection)
}

func (p *plugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, overhead, sum *api.LinuxResources) error {
	return p.hear("UpdatePodSandbox", pod, overhead, sum)
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.hear("RunPodSandbox", pod)
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.hear("PostUpdatePodSandbox", pod)
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.hear("StopPodSandbox", pod)
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.hear("RemovePodSandbox", pod)
}

func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.hear("PostCreateContainer", pod, container)
}

func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.hear("StartContainer", pod, container)
}

func (p *plugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.hear("PostStartContainer", pod, container)
}

func (p *plugin) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.hear("PostUpdateContainer", pod, container)
}

func (p *plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	return p.hear("RemoveContainer", pod, container)
}

// ids are those of pods or containers.
func ids[M interface{ GetId() string }](messages []M) []string {
	found := make([]string, len(messages))
	for i, message := range messages {
		found[i] = message.GetId()
	}
	return found
}

// hear prints an event with its messages, if that is wanted.
func (p *plugin) hear(event string, messages ...proto.Message) error {
	if !p.prints {
		return nil
	}
	texts := make([]json.RawMessage, len(messages))
	for i, message := range messages {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
		if err != nil {
			return err
		}
		texts[i] = text
	}
	return printed(map[string]any{"event": event, "messages": texts})
}

// printed writes one line, at once: handlers run beside each other.
func printed(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(append(text, '\n'))
	return err
}

func main() {
	socket := flag.String("socket", "", "where the runtime listens")
	name := flag.String("name", "lab", "the plugin's name")
	index := flag.String("index", "10", "its place among the plugins, two digits")
	adjustment := flag.String("adjust", "", "JSON of the ContainerAdjustment of every container")
	rejection := flag.String("reject", "", "with this reason all adjustments of all plugins are rejected")
	delay := flag.Duration("delay", 0, "how long CreateContainer takes")
	prints := flag.Bool("events", false, "print every event with its messages")
	failRequest := flag.Bool("fail-request", false, "of the failure policy")
	keepConnected := flag.Bool("keep-connected", false, "of the failure policy")
	flag.Parse()

	created := &plugin{rejection: *rejection, delay: *delay, prints: *prints}
	if *adjustment != "" {
		created.adjustment = &api.ContainerAdjustment{}
		fail(protojson.Unmarshal([]byte(*adjustment), created.adjustment))
	}
	// Started by a runtime it has its name, index and connection from the environment.
	var options []stub.Option
	if os.Getenv(api.PluginSocketEnvVar) == "" {
		options = append(options,
			stub.WithSocketPath(*socket), stub.WithPluginName(*name), stub.WithPluginIdx(*index))
	}
	if *failRequest || *keepConnected {
		options = append(options, stub.WithFailurePolicy(
			&api.FailurePolicy{FailRequest: *failRequest, KeepConnected: *keepConnected}))
	}
	connection, err := stub.New(created, options...)
	fail(err)
	go makeUpdates(connection)
	fail(connection.Run(context.Background()))
}

// makeUpdates makes the updates of stdin.
func makeUpdates(connection stub.Stub) {
	lines := bufio.NewReader(os.Stdin)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var request api.UpdateContainersRequest
		fail(protojson.Unmarshal(text, &request))
		failed, err := connection.UpdateContainers(request.Update)
		fail(err)
		answer, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(&api.UpdateContainersResponse{Failed: failed})
		fail(err)
		fail(printed(json.RawMessage(answer)))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "nri-plugin: %v\n", err)
		os.Exit(1)
	}
}
