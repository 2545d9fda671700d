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

// logger returns the log of serve: JSON, one entry a line. Libraries that log by
// themselves write into the first one of the process.
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

// redirectLibraries is done once, because klog and grpc-go read their logger
// without a lock. A process serves once; only tests do so more often.
var redirectLibraries sync.Once

// redirect makes the libraries that print to standard error by default log to log,
// each under its name.
func redirect(log *zap.Logger) {
	// V(0) is logged at info and V(1) at debug; klog's warnings have no level of
	// their own in logr and are logged at info.
	klog.SetLoggerWithOptions(zapr.NewLoggerWithOptions(log.Named("client-go"), zapr.LogInfoLevel("")), klog.ContextualLogger(true))
	// grpc-go prints errors alone unless its environment variables ask for more.
	grpclog.SetLoggerV2(zapgrpc.NewLogger(log.Named("grpc-go").WithOptions(zap.IncreaseLevel(zapcore.ErrorLevel))))
	redis.SetLogger(redisLog{log.Named("go-redis")})
	// net/http reports failed TLS handshakes to the standard library's logger.
	if _, err := zap.RedirectStdLogAt(log.Named("std"), zapcore.WarnLevel); err != nil {
		log.Error("the standard library's logger is not redirected", zap.Error(err))
	}
}

// redisLog implements the logger of go-redis, which has no levels: what it logs by
// default is about connections that fail.
type redisLog struct{ log *zap.Logger }

// Printf implements internal.Logging of go-redis.
func (l redisLog) Printf(_ context.Context, format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...))
}

// isTerminal returns true for a terminal: text for a reader is printed nowhere else.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
