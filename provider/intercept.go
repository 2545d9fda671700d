package provider

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gpu-node-provider/cloud/logkey"
)

// defaultDeadline is given to calls that bring none, so that nothing waits for
// ever. Cluster Autoscaler's own is 5 s (grpc_timeout).
const defaultDeadline = 30 * time.Second

// deadline gives every call one.
func deadline(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ok := ctx.Deadline(); ok {
		return handler(ctx, req)
	}
	ctx, cancel := context.WithTimeout(ctx, defaultDeadline)
	defer cancel()
	return handler(ctx, req)
}

// errPanic is the class of a recovered panic.
var errPanic = errors.New("internal error")

// recoverPanic turns a panic into an answer: one bad message must not take the
// server down for all groups.
func recoverPanic(log *zap.Logger) grpc.UnaryServerInterceptor {
	return recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		log.Error("handler panicked", zap.Any(logkey.Panic, p), zap.ByteString(logkey.Stack, debug.Stack()))
		return toStatus(fmt.Errorf("%w: %v", errPanic, p))
	}))
}

// changes are the calls that change something, each worth a line in the log.
var changes = map[string]bool{
	"NodeGroupIncreaseSize":       true,
	"NodeGroupDecreaseTargetSize": true,
	"NodeGroupDeleteNodes":        true,
	"Cleanup":                     true,
	"GPULabel":                    true, // a new autoscaler process
}

// logCalls writes a line for each call that changes something or fails; reads
// that succeed only at debug level. It is our own because a loop of Cluster
// Autoscaler makes tens of thousands of calls, and the general interceptor
// gathers its fields before it knows whether anybody wants them.
func logCalls(log *zap.Logger, now func() time.Time) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		start := now()
		response, err := handler(ctx, req)
		level := zapcore.DebugLevel
		if err != nil || changes[path.Base(info.FullMethod)] {
			level = levelOf(err)
		}
		if entry := log.Check(level, "call"); entry != nil {
			entry.Write(callFields(path.Base(info.FullMethod), req, now().Sub(start), err)...)
		}
		return response, err
	}
}

// levelOf keeps what is a normal answer out of the warnings: Cluster
// Autoscaler asks thousands of times for options that there are not.
func levelOf(err error) zapcore.Level {
	switch status.Code(err) {
	case codes.OK:
		return zapcore.InfoLevel
	case codes.Unimplemented:
		return zapcore.DebugLevel
	case codes.Internal, codes.Unknown:
		return zapcore.ErrorLevel
	default:
		return zapcore.WarnLevel
	}
}

func callFields(method string, req any, took time.Duration, err error) []zap.Field {
	fields := []zap.Field{
		zap.String(logkey.Method, method), zap.Duration(logkey.Duration, took), zap.Stringer(logkey.Code, status.Code(err)),
	}
	if r, ok := req.(interface{ GetId() string }); ok {
		fields = append(fields, zap.String(logkey.NodeGroup, shorten(r.GetId(), maxIDInMessage)))
	}
	if r, ok := req.(interface{ GetDelta() int32 }); ok {
		fields = append(fields, zap.Int32(logkey.Delta, r.GetDelta()))
	}
	if err != nil {
		fields = append(fields, zap.String(logkey.Error, status.Convert(err).Message()))
	}
	return fields
}

// authorize turns the refusal of an identity into a status.
func authorize(allow func(context.Context) error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := allow(ctx); err != nil {
			return nil, toStatus(err)
		}
		return handler(ctx, req)
	}
}

// authorizeStream does the same for the streams of health and reflection.
func authorizeStream(allow func(context.Context) error) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := allow(stream.Context()); err != nil {
			return toStatus(err)
		}
		return handler(srv, stream)
	}
}
