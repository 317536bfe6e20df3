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
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
)

// plugin answers every event.
type plugin struct {
	adjustment *api.ContainerAdjustment
	rejection  string
	delay      time.Duration
}

func (p *plugin) Configure(_ context.Context, _, _, _ string) (api.EventMask, error) {
	events := api.ValidEvents
	if p.rejection == "" {
		events.Clear(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	}
	return events, nil
}

func (p *plugin) Synchronize(
	_ context.Context, pods []*api.PodSandbox, containers []*api.Container,
) ([]*api.ContainerUpdate, error) {
	fmt.Printf(`{"event":"Synchronize","pods":%d,"containers":%d}`+"\n", len(pods), len(containers))
	return nil, nil
}

func (p *plugin) CreateContainer(
	_ context.Context, _ *api.PodSandbox, _ *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	time.Sleep(p.delay)
	return p.adjustment, nil, nil
}

func (p *plugin) UpdateContainer(
	_ context.Context, _ *api.PodSandbox, _ *api.Container, _ *api.LinuxResources,
) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

func (p *plugin) StopContainer(
	_ context.Context, _ *api.PodSandbox, _ *api.Container,
) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

func (p *plugin) ValidateContainerAdjustment(_ context.Context, _ *api.ValidateContainerAdjustmentRequest) error {
	return errors.New(p.rejection)
}

func (p *plugin) UpdatePodSandbox(_ context.Context, _ *api.PodSandbox, _, _ *api.LinuxResources) error {
	return nil
}

func (p *plugin) RunPodSandbox(_ context.Context, _ *api.PodSandbox) error        { return nil }
func (p *plugin) PostUpdatePodSandbox(_ context.Context, _ *api.PodSandbox) error { return nil }
func (p *plugin) StopPodSandbox(_ context.Context, _ *api.PodSandbox) error       { return nil }
func (p *plugin) RemovePodSandbox(_ context.Context, _ *api.PodSandbox) error     { return nil }

func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, _ *api.Container) error {
	return nil
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, _ *api.Container) error {
	return nil
}

func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, _ *api.Container) error {
	return nil
}

func (p *plugin) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, _ *api.Container) error {
	return nil
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, _ *api.Container) error {
	return nil
}

func main() {
	socket := flag.String("socket", "", "where the runtime listens")
	name := flag.String("name", "lab", "the plugin's name")
	index := flag.String("index", "10", "its place among the plugins, two digits")
	adjustment := flag.String("adjust", "", "JSON of the ContainerAdjustment of every container")
	rejection := flag.String("reject", "", "with this reason all adjustments of all plugins are rejected")
	delay := flag.Duration("delay", 0, "how long CreateContainer takes")
	failRequest := flag.Bool("fail-request", false, "of the failure policy")
	keepConnected := flag.Bool("keep-connected", false, "of the failure policy")
	flag.Parse()

	created := &plugin{rejection: *rejection, delay: *delay}
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
		answer, err := protojson.Marshal(&api.UpdateContainersResponse{Failed: failed})
		fail(err)
		fail(json.NewEncoder(os.Stdout).Encode(json.RawMessage(answer)))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "nri-plugin: %v\n", err)
		os.Exit(1)
	}
}
