package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// runtime has commands of its own instead of containers.
type runtime struct{}

// Exec knows: cat (input to output), exit N, fail, sizes N (prints that many terminal sizes).
func (runtime) Exec(ctx context.Context, _ string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	switch cmd[0] {
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "exit":
		code, err := strconv.Atoi(cmd[1])
		if err != nil {
			return err
		}
		fmt.Fprintf(errOut, "exiting with %d\n", code)
		return &utilexec.CodeExitError{Err: fmt.Errorf("exit code %d", code), Code: code}
	case "sizes":
		count, err := strconv.Atoi(cmd[1])
		if err != nil {
			return err
		}
		for range count {
			size := <-resize
			fmt.Fprintf(out, "%dx%d\n", size.Width, size.Height)
		}
		return nil
	}
	return fmt.Errorf("no command %v", cmd)
}

func (runtime) Attach(ctx context.Context, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

// PortForward echoes, except that nobody listens on port 1.
func (runtime) PortForward(ctx context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	if port == 1 {
		return fmt.Errorf("connection refused")
	}
	_, err := io.Copy(stream, stream)
	return err
}

// serve is a runtime's streaming server until its input ends. The first line that it prints is its address; `/url/exec` and
// `/url/portforward` there answer what CRI's Exec and PortForward would.
func serve(args []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	config := streaming.DefaultConfig
	config.Addr = listener.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr}
	server, err := streaming.NewServer(config, runtime{})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", server)
	mux.HandleFunc("/url/exec", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		on := func(name string) bool { return query.Get(name) == "1" }
		response, err := server.GetExec(&runtimeapi.ExecRequest{
			ContainerId: "c", Cmd: query["cmd"], Tty: on("tty"), Stdin: on("stdin"), Stdout: on("stdout"), Stderr: on("stderr"),
		})
		answer(w, response.GetUrl(), err)
	})
	mux.HandleFunc("/url/portforward", func(w http.ResponseWriter, r *http.Request) {
		response, err := server.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p"})
		answer(w, response.GetUrl(), err)
	})
	fmt.Println(config.Addr)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return http.Serve(listener, mux)
}

func answer(w http.ResponseWriter, url string, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, url)
}
