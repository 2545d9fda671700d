package aws

import (
	"fmt"

	"github.com/aws/smithy-go/logging"
	"go.uber.org/zap"
)

// sdkLog makes the SDK log to log: by default it prints to standard error.
func sdkLog(log *zap.Logger) logging.Logger {
	if log == nil {
		return logging.Nop{}
	}
	log = log.Named("aws-sdk")
	return logging.LoggerFunc(func(level logging.Classification, format string, args ...any) {
		if level == logging.Warn {
			log.Warn(fmt.Sprintf(format, args...))
			return
		}
		log.Debug(fmt.Sprintf(format, args...))
	})
}
