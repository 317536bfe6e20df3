// Command kubelet-client drives a CRI endpoint with k8s.io/cri-client, the code with which the
// kubelet calls a runtime, and prints what came back as JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gogo/protobuf/jsonpb"
	"github.com/gogo/protobuf/proto"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/klog/v2"
)

const usage = `usage: kubelet-client -endpoint unix:///PATH [-timeout 10s] COMMAND [ARGUMENT...]

  version | status | list | images | image-fs
  image-status NAME         pull NAME
  run-pod                   stdin: {"sandbox": PodSandboxConfig, "containers": [ContainerConfig...]}
  pod-status ID             container-status ID
  exec ID COMMAND...        update ID      (stdin: LinuxContainerResources)
  stop-container ID         remove-container ID
  remove-pod ID             containers and sandbox: stop, then remove
  events                    every container event, one line each
  burst N PARALLEL          N Version calls, PARALLEL at a time
  watch                     a Version call every 50 ms, one line each
  load                      stdin: an order of tests/restarts; calls until stdin ends, one line each
`

// session holds one connection per service, as the kubelet does.
type session struct {
	ctx     context.Context
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
}

func main() {
	endpoint := flag.String("endpoint", "", "unix:///path of the CRI socket")
	timeout := flag.Duration("timeout", 10*time.Second, "the kubelet's runtimeRequestTimeout")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()
	command, known := commands[flag.Arg(0)]
	if *endpoint == "" || !known || flag.NArg()-1 < command.arguments {
		flag.Usage()
		os.Exit(2)
	}
	result, err := run(*endpoint, *timeout, command, flag.Args()[1:])
	if err != nil {
		emit(map[string]any{"error": describe(err)})
		os.Exit(1)
	}
	if result != nil {
		emit(result)
	}
}

func run(endpoint string, timeout time.Duration, command command, arguments []string) (any, error) {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	connected, err := connect(context.Background(), endpoint, timeout)
	if err != nil {
		return nil, err
	}
	return command.run(connected, arguments)
}

func describe(err error) map[string]any {
	reported, _ := status.FromError(err)
	return map[string]any{"code": reported.Code().String(), "message": reported.Message()}
}

func emit(value any) {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(encoded))
}

// asJSON renders a message with the field names of the .proto file.
func asJSON(message proto.Message) (json.RawMessage, error) {
	text, err := (&jsonpb.Marshaler{OrigName: true}).MarshalToString(message)
	return json.RawMessage(text), err
}

func asJSONList[M proto.Message](messages []M) ([]json.RawMessage, error) {
	list := []json.RawMessage{}
	for _, message := range messages {
		encoded, err := asJSON(message)
		if err != nil {
			return nil, err
		}
		list = append(list, encoded)
	}
	return list, nil
}
