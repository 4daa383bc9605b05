package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
)

// sizes hands out terminal sizes one after another, then waits for ever as a terminal would.
type sizes struct {
	left  []string
	pause time.Duration
}

func (s *sizes) Next() *remotecommand.TerminalSize {
	if len(s.left) == 0 {
		select {}
	}
	size := remotecommand.TerminalSize{}
	if _, err := fmt.Sscanf(s.left[0], "%dx%d", &size.Width, &size.Height); err != nil {
		fail(err)
	}
	s.left = s.left[1:]
	time.Sleep(s.pause)
	return &size
}

// exec runs a remote command with this process's streams and ends with its exit code.
func exec(args []string) error {
	flags := flag.NewFlagSet("exec", flag.ExitOnError)
	to := serverFlags(flags)
	transport := flags.String("transport", "websocket", "spdy or websocket")
	protocols := flags.String("protocols", "", "what to offer, with commas; client-go's own choice if empty")
	stdin := flags.Bool("stdin", false, "send input")
	stdout := flags.Bool("stdout", false, "take output")
	stderr := flags.Bool("stderr", false, "take error output")
	tty := flags.Bool("tty", false, "in a terminal")
	resizes := flags.String("sizes", "", "terminal sizes like 80x24, with commas")
	kill := flags.Duration("kill", 0, "die abruptly after this time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *kill > 0 {
		time.AfterFunc(*kill, func() { os.Exit(failed) })
	}
	executor, err := newExecutor(to, *transport, *protocols)
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Tty: *tty}
	if *stdin {
		options.Stdin = os.Stdin
	}
	if *stdout {
		options.Stdout = os.Stdout
	}
	if *stderr {
		options.Stderr = os.Stderr
	}
	if *resizes != "" {
		options.TerminalSizeQueue = &sizes{left: strings.Split(*resizes, ","), pause: 10 * time.Millisecond}
	}
	err = executor.StreamWithContext(context.Background(), options)
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, exit)
		os.Exit(exit.Code)
	}
	return err
}

func newExecutor(to *server, transport, protocols string) (remotecommand.Executor, error) {
	config, address := to.config(), to.address
	var offered []string
	if protocols != "" {
		offered = strings.Split(protocols, ",")
	}
	if transport == "websocket" {
		if offered == nil {
			return remotecommand.NewWebSocketExecutor(config, "GET", address)
		}
		return remotecommand.NewWebSocketExecutorForProtocols(config, "GET", address, offered...)
	}
	target, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if offered == nil {
		return remotecommand.NewSPDYExecutor(config, "POST", target)
	}
	tripper, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutorForProtocols(tripper, upgrader, "POST", target, offered...)
}
