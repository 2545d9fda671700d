package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/go-logr/zapr"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zapgrpc"
	"golang.org/x/term"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// logger returns the logger of serve: JSON, one entry per line. Libraries log to the first
// one of the process.
func logger(w io.Writer, verbose bool) *zap.Logger {
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoding.EncodeDuration = zapcore.StringDurationEncoder
	level := zapcore.InfoLevel
	if verbose {
		level = zapcore.DebugLevel
	}
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(encoding), zapcore.Lock(zapcore.AddSync(w)), level))
	redirectLibraries.Do(func() { redirect(log) })
	return log
}

// redirectLibraries runs once, because klog and grpc-go read their logger without a lock.
// Only tests serve more than once in a process.
var redirectLibraries sync.Once

// redirect replaces the loggers of libraries, which print to standard error by default,
// with log under a name for each library.
func redirect(log *zap.Logger) {
	// V(0) is logged at info and V(1) at debug; klog's warnings have no level of
	// their own in logr and are logged at info.
	klog.SetLoggerWithOptions(zapr.NewLoggerWithOptions(log.Named("client-go"), zapr.LogInfoLevel("")), klog.ContextualLogger(true))
	// By default grpc-go logs errors only.
	grpclog.SetLoggerV2(zapgrpc.NewLogger(log.Named("grpc-go").WithOptions(zap.IncreaseLevel(zapcore.ErrorLevel))))
	redis.SetLogger(redisLog{log.Named("go-redis")})
	// net/http reports failed TLS handshakes to the standard library's logger.
	if _, err := zap.RedirectStdLogAt(log.Named("std"), zapcore.WarnLevel); err != nil {
		log.Error("failed to redirect the logger of the standard library", zap.Error(err))
	}
}

// redisLog implements the logger of go-redis, which has no levels. By default go-redis logs
// failed connections, so all entries are warnings.
type redisLog struct{ log *zap.Logger }

// Printf implements internal.Logging of go-redis.
func (l redisLog) Printf(_ context.Context, format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...))
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
