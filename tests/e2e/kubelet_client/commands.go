package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gogo/protobuf/jsonpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

type command struct {
	arguments int
	run       func(*session, []string) (any, error)
}

var commands = map[string]command{
	"version":          {0, version},
	"status":           {0, runtimeStatus},
	"list":             {0, list},
	"images":           {0, images},
	"image-fs":         {0, imageFs},
	"image-status":     {1, imageStatus},
	"pull":             {1, pull},
	"run-pod":          {0, runPod},
	"pod-status":       {1, podStatus},
	"container-status": {1, containerStatus},
	"exec":             {2, execSync},
	"update":           {1, update},
	"stop-container":   {1, stopContainer},
	"remove-container": {1, removeContainer},
	"remove-pod":       {1, removePod},
	"events":           {0, events},
	"burst":            {2, burst},
	"watch":            {0, watch},
	"load":             {0, load},
}

func version(s *session, _ []string) (any, error) {
	answer, err := s.runtime.Version(s.ctx, "0.1.0")
	if err != nil {
		return nil, err
	}
	return asJSON(answer)
}

func runtimeStatus(s *session, _ []string) (any, error) {
	answer, err := s.runtime.Status(s.ctx, true)
	if err != nil {
		return nil, err
	}
	return asJSON(answer)
}

func list(s *session, _ []string) (any, error) {
	sandboxes, err := s.runtime.ListPodSandbox(s.ctx, nil)
	if err != nil {
		return nil, err
	}
	containers, err := s.runtime.ListContainers(s.ctx, nil)
	if err != nil {
		return nil, err
	}
	sandboxList, err := asJSONList(sandboxes)
	if err != nil {
		return nil, err
	}
	containerList, err := asJSONList(containers)
	return map[string]any{"sandboxes": sandboxList, "containers": containerList}, err
}

func images(s *session, _ []string) (any, error) {
	answer, err := s.images.ListImages(s.ctx, nil)
	if err != nil {
		return nil, err
	}
	return asJSONList(answer)
}

func imageFs(s *session, _ []string) (any, error) {
	answer, err := s.images.ImageFsInfo(s.ctx)
	if err != nil {
		return nil, err
	}
	return asJSON(answer)
}

func imageStatus(s *session, arguments []string) (any, error) {
	answer, err := s.images.ImageStatus(s.ctx, &runtimeapi.ImageSpec{Image: arguments[0]}, false)
	if err != nil {
		return nil, err
	}
	return asJSON(answer)
}

func pull(s *session, arguments []string) (any, error) {
	reference, err := s.images.PullImage(s.ctx, &runtimeapi.ImageSpec{Image: arguments[0]}, nil, nil)
	return map[string]any{"image_ref": reference}, err
}

// runPod reads the pod from stdin; what was made before a failure stays, as with the kubelet.
func runPod(s *session, _ []string) (any, error) {
	var pod struct {
		Sandbox    json.RawMessage   `json:"sandbox"`
		Containers []json.RawMessage `json:"containers"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&pod); err != nil {
		return nil, err
	}
	sandbox := &runtimeapi.PodSandboxConfig{}
	if err := jsonpb.Unmarshal(bytes.NewReader(pod.Sandbox), sandbox); err != nil {
		return nil, err
	}
	id, err := s.runtime.RunPodSandbox(s.ctx, sandbox, "")
	if err != nil {
		return nil, err
	}
	ids := []string{}
	for _, text := range pod.Containers {
		container := &runtimeapi.ContainerConfig{}
		if err := jsonpb.Unmarshal(bytes.NewReader(text), container); err != nil {
			return nil, err
		}
		containerID, err := s.runtime.CreateContainer(s.ctx, id, container, sandbox)
		if err != nil {
			return nil, err
		}
		if err := s.runtime.StartContainer(s.ctx, containerID); err != nil {
			return nil, err
		}
		ids = append(ids, containerID)
	}
	return map[string]any{"pod_sandbox_id": id, "container_ids": ids}, nil
}

func podStatus(s *session, arguments []string) (any, error) {
	answer, err := s.runtime.PodSandboxStatus(s.ctx, arguments[0], true)
	if err != nil {
		return nil, err
	}
	return asJSON(answer)
}

func containerStatus(s *session, arguments []string) (any, error) {
	answer, err := s.runtime.ContainerStatus(s.ctx, arguments[0], true)
	if err != nil {
		return nil, err
	}
	return asJSON(answer)
}

func execSync(s *session, arguments []string) (any, error) {
	stdout, stderr, err := s.runtime.ExecSync(s.ctx, arguments[0], arguments[1:], 10*time.Second)
	exitCode := 0
	var exit utilexec.ExitError
	if errors.As(err, &exit) {
		exitCode, err = exit.ExitStatus(), nil
	}
	result := map[string]any{"stdout": string(stdout), "stderr": string(stderr), "exit_code": exitCode}
	return result, err
}

func update(s *session, arguments []string) (any, error) {
	linux := &runtimeapi.LinuxContainerResources{}
	if err := jsonpb.Unmarshal(os.Stdin, linux); err != nil {
		return nil, err
	}
	resources := &runtimeapi.ContainerResources{Linux: linux}
	return struct{}{}, s.runtime.UpdateContainerResources(s.ctx, arguments[0], resources)
}

func stopContainer(s *session, arguments []string) (any, error) {
	return struct{}{}, s.runtime.StopContainer(s.ctx, arguments[0], 0)
}

func removeContainer(s *session, arguments []string) (any, error) {
	return struct{}{}, s.runtime.RemoveContainer(s.ctx, arguments[0])
}

func removePod(s *session, arguments []string) (any, error) {
	filter := &runtimeapi.ContainerFilter{PodSandboxId: arguments[0]}
	containers, err := s.runtime.ListContainers(s.ctx, filter)
	if err != nil {
		return nil, err
	}
	for _, container := range containers {
		if err := s.runtime.StopContainer(s.ctx, container.Id, 0); err != nil {
			return nil, err
		}
		if err := s.runtime.RemoveContainer(s.ctx, container.Id); err != nil {
			return nil, err
		}
	}
	if err := s.runtime.StopPodSandbox(s.ctx, arguments[0]); err != nil {
		return nil, err
	}
	return struct{}{}, s.runtime.RemovePodSandbox(s.ctx, arguments[0])
}

// events prints {"subscribed": true} first, so that a caller knows when it may act, and then every
// event until the stream or the program ends.
func events(s *session, _ []string) (any, error) {
	received := make(chan *runtimeapi.ContainerEventResponse, 1000)
	failed := make(chan error, 1)
	go func() {
		connected := func(runtimeapi.RuntimeService_GetContainerEventsClient) {
			emit(map[string]any{"subscribed": true})
		}
		failed <- s.runtime.GetContainerEvents(s.ctx, received, connected)
	}()
	for {
		select {
		case event := <-received:
			encoded, err := asJSON(event)
			if err != nil {
				return nil, err
			}
			emit(encoded)
		case err := <-failed:
			return nil, err
		}
	}
}

func burst(s *session, arguments []string) (any, error) {
	calls, err := strconv.Atoi(arguments[0])
	if err != nil {
		return nil, err
	}
	parallel, err := strconv.Atoi(arguments[1])
	if err != nil {
		return nil, err
	}
	tickets := make(chan struct{}, calls)
	for range calls {
		tickets <- struct{}{}
	}
	close(tickets)
	start := time.Now()
	codes, lock, callers := map[string]int{}, sync.Mutex{}, sync.WaitGroup{}
	for range parallel {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for range tickets {
				_, err := s.runtime.Version(s.ctx, "0.1.0")
				lock.Lock()
				codes[describe(err)["code"].(string)]++
				lock.Unlock()
			}
		}()
	}
	callers.Wait()
	return map[string]any{"codes": codes, "seconds": time.Since(start).Seconds()}, nil
}

func watch(s *session, _ []string) (any, error) {
	for range time.Tick(50 * time.Millisecond) {
		_, err := s.runtime.Version(s.ctx, "0.1.0")
		emit(describe(err))
	}
	return nil, nil
}
