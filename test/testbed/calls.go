package testbed

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"gpu-node-provider/proto"
)

// Provider is a client of the provider as Cluster Autoscaler's is one. close
// ends its connection.
func (b *Bed) Provider() (client proto.CloudProviderClient, closes func(), err error) {
	how := insecure.NewCredentials()
	if b.Webhook { // then the port takes nothing else
		pair, err := tls.LoadX509KeyPair(b.certificate("client.crt"), b.certificate("client.key"))
		if err != nil {
			return nil, nil, err
		}
		ca, err := os.ReadFile(b.certificate("ca.crt"))
		if err != nil {
			return nil, nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		how = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots})
	}
	connection, err := grpc.NewClient(b.grpc, grpc.WithTransportCredentials(how))
	if err != nil {
		return nil, nil, err
	}
	return proto.NewCloudProviderClient(connection), func() { _ = connection.Close() }, nil
}

// Metric is the value of one of the provider's metrics, by its name and labels as
// they are printed; 0 when it is not there.
func (b *Bed) Metric(ctx context.Context, series string) (value float64, err error) {
	text, err := fetch(ctx, "http://"+b.http+"/metrics")
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
			_, err := fmt.Sscan(rest, &value)
			return value, err
		}
	}
	return 0, nil
}

// Failures are what the provider's log says of failed calls of a method.
func (b *Bed) Failures(method string) (all []string, err error) {
	err = b.providerLog(func(line []byte) {
		var entry struct{ Msg, Method, Error string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg == "call" && entry.Method == method && entry.Error != "" {
			all = append(all, entry.Error)
		}
	})
	return all, err
}
