// Command squeeze is a QoS plugin in a process of its own: BE pods get half of the node's CPU while LS pods
// are throttled. It serves runtimeproxy.v1.QoSPlugin on the socket that is its argument.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "squeeze/runtimeproxy"
)

const (
	window   = 10 * time.Second
	limit    = 0.1
	periodUS = 100_000
)

type squeeze struct {
	pb.UnimplementedQoSPluginServer

	mu          sync.Mutex
	node        *pb.GetNodeResponse
	isThrottled bool
}

func (s *squeeze) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return &pb.DescribeResponse{
		Needs: []*pb.SampleNeed{{
			Level:  pb.SampleLevel_SAMPLE_LEVEL_QOS_CLASS,
			Metric: "cpu_throttled",
			Window: durationpb.New(window),
		}},
		About: "squeeze 1.0 in Go",
	}, nil
}

func (s *squeeze) Decide(_ context.Context, request *pb.DecideRequest) (*pb.DecideResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if request.Node != nil { // absent: as before
		s.node = request.Node
	}
	if request.IsFirst { // values that count from before must not jump
		s.isThrottled = len(request.Held) > 0
	}
	for _, sample := range request.Samples {
		if sample.Cgroup == s.cgroupOf("Burstable") {
			s.isThrottled = sample.Average > limit
		}
	}
	if !s.isThrottled {
		return &pb.DecideResponse{Explanation: "LS pods are not throttled"}, nil
	}
	cpus := 0
	for _, cpu := range s.node.GetCpus() {
		if cpu.IsOnline {
			cpus++
		}
	}
	value := strconv.Itoa(cpus * periodUS / 2)
	reason := fmt.Sprintf("LS pods are throttled: half of %d CPUs", cpus)
	return &pb.DecideResponse{
		Claims: []*pb.Claim{{
			Key: &pb.ClaimKey{
				Target: &pb.ClaimTarget{Target: &pb.ClaimTarget_QosClass{QosClass: "BestEffort"}},
				Field:  "cpu.cfs_quota_us",
				Role:   pb.ExplainedClaim_ROLE_AT_MOST,
			},
			Value:  &value,
			Reason: reason,
		}},
		Explanation: reason,
	}, nil
}

func (s *squeeze) cgroupOf(class string) string {
	for _, each := range s.node.GetQosClassCgroups() {
		if each.KubeQosClass == class {
			return each.Cgroup
		}
	}
	return ""
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: squeeze SOCKET")
	}
	_ = os.Remove(os.Args[1])
	syscall.Umask(0o077)
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterQoSPluginServer(server, &squeeze{node: &pb.GetNodeResponse{}})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		server.GracefulStop()
	}()
	log.Fatal(server.Serve(listener))
}
