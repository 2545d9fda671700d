package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-node-provider/proto"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code: 2 for flags that are not known, 1 for what does not work.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "autoscaler:", err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{ReplaceAttr: shortTime}))
	if err := serve(ctx, o, log); err != nil {
		log.Error("ended", "error", err)
		return 1
	}
	return 0
}

func shortTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		a.Value = slog.StringValue(a.Value.Time().Format("15:04:05.000"))
	}
	return a
}

func serve(ctx context.Context, o options, log *slog.Logger) error {
	conf, err := readCloudConfig(o.cloudConfig)
	if err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	rest.QPS, rest.Burst = 5, 10 // as the real one
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	conn, err := dial(conf)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is left to be said to the server
	recorder, endEvents := newEvents(kube)
	defer endEvents()
	a := newAutoscaler(o, proto.NewCloudProviderClient(conn), conf.timeout, kube, recorder, log)
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	server := &http.Server{Handler: a.watch.handler(), ReadHeaderTimeout: 5 * time.Second}
	a.tasks.Go(func() { _ = server.Serve(listener) })
	defer server.Close() //nolint:errcheck // the process ends
	log.Info("running", "server", conf.Address, "metrics", listener.Addr(), "scan_interval", o.scanInterval)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		<-ctx.Done()
		exit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*conf.timeout)
		defer cancel()
		a.exit(exit)
		_ = server.Close()
	}()
	a.run(ctx)
	<-exited
	return nil
}
