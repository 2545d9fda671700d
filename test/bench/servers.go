package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"gpu-node-provider/proto"
	"gpu-node-provider/provider"
)

// What a child process can be, by the name that it is started with.
const (
	serveProvider  = "provider"
	serveConstant  = "constant"
	serveAPIServer = "apiserver"
	serveView      = "view"
	serveAWS       = "aws"
)

// beChild is what a child process does, until it is killed or has said its result.
func beChild(ctx context.Context, kind, address string) error {
	switch kind {
	case serveAPIServer:
		return serveAPI()
	case serveAWS:
		return serveStub()
	case serveView:
		return followCluster(ctx, address)
	default:
		return serve(kind)
	}
}

// serve is a child process: it prints its address and an instance's id a line,
// and answers until it is killed.
func serve(kind string) error {
	w, err := newWorld()
	if err != nil {
		return err
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, _ = fmt.Println(port.Addr(), strings.Join(w.ids, " "))
	if kind == serveConstant {
		constant, err := newConstant(w)
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		proto.RegisterCloudProviderServer(server, constant)
		return server.Serve(port)
	}
	runtime.GC()
	debug.FreeOSMemory() // what building the world took is not what running it takes
	return provider.NewListener(w.server, provider.ListenOptions{Log: zap.NewNop(), Registerer: prometheus.NewRegistry()}).Serve(port)
}

// constant answers with messages that it was made with.
type constant struct {
	proto.UnimplementedCloudProviderServer

	nodeGroups *proto.NodeGroupsResponse
	forNode    *proto.NodeGroupForNodeResponse
	targetSize *proto.NodeGroupTargetSizeResponse
	options    *proto.NodeGroupAutoscalingOptionsResponse
}

// newConstant takes one answer of the provider for each call.
func newConstant(w *world) (c *constant, err error) {
	ctx, c := context.Background(), &constant{}
	if c.nodeGroups, err = w.server.NodeGroups(ctx, &proto.NodeGroupsRequest{}); err != nil {
		return nil, err
	}
	if c.forNode, err = w.server.NodeGroupForNode(ctx, forNodeRequest(w.ids[0])); err != nil {
		return nil, err
	}
	if c.targetSize, err = w.server.NodeGroupTargetSize(ctx, &proto.NodeGroupTargetSizeRequest{Id: groupID(0)}); err != nil {
		return nil, err
	}
	c.options, err = w.server.NodeGroupGetOptions(ctx, optionsRequest(groupID(0)))
	return c, err
}

func (c *constant) NodeGroups(context.Context, *proto.NodeGroupsRequest) (*proto.NodeGroupsResponse, error) {
	return c.nodeGroups, nil
}

func (c *constant) NodeGroupForNode(context.Context, *proto.NodeGroupForNodeRequest) (*proto.NodeGroupForNodeResponse, error) {
	return c.forNode, nil
}

func (c *constant) NodeGroupTargetSize(context.Context, *proto.NodeGroupTargetSizeRequest) (*proto.NodeGroupTargetSizeResponse, error) {
	return c.targetSize, nil
}

func (c *constant) NodeGroupGetOptions(context.Context, *proto.NodeGroupAutoscalingOptionsRequest) (*proto.NodeGroupAutoscalingOptionsResponse, error) {
	return c.options, nil
}

// diesWithUs ends a child process also when this one is killed.
var diesWithUs = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

// child is a server in a process of its own.
type child struct {
	command *exec.Cmd
	address string
	ids     []string
}

func start(ctx context.Context, kind string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, self, "-serve", kind)
	command.Stderr, command.SysProcAttr = os.Stderr, diesWithUs
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	line, err := readLine(out)
	if err != nil {
		return nil, fmt.Errorf("the %s server did not start: %w", kind, err)
	}
	fields := strings.Fields(line)
	return &child{command, fields[0], fields[1:]}, nil
}

func (c *child) residentMiB() (float64, error) { return processMiB(c.command.Process.Pid, "VmRSS") }

// processMiB is a figure of a process's memory, from Linux's /proc.
func processMiB(pid int, field string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(text), field+":")
	if !ok {
		return 0, fmt.Errorf("/proc tells no %s", field)
	}
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	return kib / 1024, err
}
