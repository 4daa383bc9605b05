package main

import (
	"flag"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// forward listens on local ports until its input ends. What it listens on, it prints.
func forward(args []string) error {
	flags := flag.NewFlagSet("forward", flag.ExitOnError)
	to := serverFlags(flags)
	transport := flags.String("transport", "websocket", "spdy or websocket (SPDY tunnelled through it)")
	ports := flags.String("ports", "", "LOCAL:REMOTE pairs, with commas; LOCAL may be 0")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dialer, err := newDialer(to, *transport)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	forwarder, err := portforward.NewOnAddressesForStreaming(
		dialer, []string{"127.0.0.1"}, strings.Split(*ports, ","), stop, make(chan struct{}), os.Stdout, os.Stderr)
	if err != nil {
		return err
	}
	return forwarder.ForwardPorts()
}

func newDialer(to *server, transport string) (httpstream.Dialer, error) {
	config := to.config()
	target, err := url.Parse(to.address)
	if err != nil {
		return nil, err
	}
	if transport == "websocket" {
		return portforward.NewSPDYOverWebsocketDialerForStreaming(target, config)
	}
	tripper, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: tripper}, "POST", target), nil
}
