// Command streamclient is upstream's own streaming code with a command line, for tests: client-go's executors and
// port-forwarder, the streaming server of container runtimes, and single WebSocket messages.
package main

import (
	"fmt"
	"os"
)

// failed is the exit code for everything that is not the remote command's own.
const failed = 125

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: streamclient exec|forward|frames|serve FLAGS"))
	}
	var err error
	switch args := os.Args[2:]; os.Args[1] {
	case "exec":
		err = exec(args)
	case "forward":
		err = forward(args)
	case "frames":
		err = frames(args)
	case "serve":
		err = serve(args)
	default:
		err = fmt.Errorf("no command %q", os.Args[1])
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "streamclient: %v\n", err)
	os.Exit(failed)
}
