// Command nri-adaptation is a container runtime without containers: it calls NRI plugins with pkg/adaptation, the code
// with which containerd and CRI-O call them. It reads one JSON object a line, a call, and prints one a line: the
// call's answer, or an event of a plugin.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/containerd/nri/pkg/adaptation"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
)

const usage = `usage: nri-adaptation -socket PATH [FLAG...]

stdin:  {"call": "CreateContainer", "request": {...}}   every call of the Plugin service, in the order of the lines
        {"call": "Inventory", "request": {...}}         SynchronizeRequest: what the next plugins are told
        {"call": "AnswerUpdates", "request": {...}}     UpdateContainersResponse: the answer to unsolicited updates
stdout: {"call": "CreateContainer", "response": {...}, "error": "", "seconds": 0.001, "invocations": [...]}
        {"event": "Plugins", "count": 1}                a plugin has been synchronized or dropped
        {"event": "Synchronize", "response": {...}, "error": "", "seconds": 0.001}
        {"event": "UpdateContainers", "request": {...}}

`

func main() {
	socket := flag.String("socket", "", "where plugins connect")
	name := flag.String("name", "containerd", "the runtime's name in Configure")
	version := flag.String("version", "v2.4.2", "the runtime's version in Configure")
	registration := flag.Duration("registration-timeout", adaptation.DefaultPluginRegistrationTimeout, "")
	request := flag.Duration("request-timeout", adaptation.DefaultPluginRequestTimeout, "")
	plugins := flag.String("plugins", "/nonexistent", "folder of plugins that are started with the runtime")
	configurations := flag.String("plugin-configurations", "/nonexistent", "folder of their configuration")
	validation := flag.String("default-validator", "{}", "JSON of DefaultValidatorConfig")
	inventory := flag.String("inventory", "", "file with the first Inventory")
	flag.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if *socket == "" || flag.NArg() != 0 {
		flag.Usage()
		os.Exit(2)
	}
	var validatorConfiguration validator.DefaultValidatorConfig
	if err := json.Unmarshal([]byte(*validation), &validatorConfiguration); err != nil {
		fail(fmt.Errorf("-default-validator: %w", err))
	}
	adaptation.SetPluginRegistrationTimeout(*registration)
	adaptation.SetPluginRequestTimeout(*request)

	runtime := newRuntime(os.Stdout)
	if *inventory != "" {
		if err := runtime.readInventory(*inventory); err != nil {
			fail(fmt.Errorf("-inventory: %w", err))
		}
	}
	caller, err := adaptation.New(*name, *version, runtime.synchronize, runtime.updateContainers,
		adaptation.WithSocketPath(*socket),
		adaptation.WithPluginPath(*plugins),
		adaptation.WithPluginConfigPath(*configurations),
		adaptation.WithDefaultValidator(&validatorConfiguration),
		adaptation.WithMetrics(runtime.invocations))
	if err != nil {
		fail(err)
	}
	runtime.calls = callsOf(caller)
	if err := caller.Start(); err != nil {
		fail(err)
	}
	defer caller.Stop()
	runtime.print(line{Event: "Listening"})
	if err := serve(runtime, os.Stdin); err != nil {
		fail(err)
	}
}

// serve makes the calls one after the other until the input ends.
func serve(runtime *runtime, input io.Reader) error {
	lines := bufio.NewReader(input)
	for {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var order order
		if err := json.Unmarshal(text, &order); err != nil {
			return err
		}
		runtime.print(runtime.call(order))
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "nri-adaptation: %v\n", err)
	os.Exit(1)
}
