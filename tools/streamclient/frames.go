package main

import (
	"bufio"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
)

// frames speaks plain WebSocket: each line of its input (binary or text, then the bytes in hex) is a message to send, and
// each message that comes is such a line of its output. The first line is the subprotocol, the last one how it ended. The
// end of its input closes the connection.
func frames(args []string) error {
	flags := flag.NewFlagSet("frames", flag.ExitOnError)
	to := serverFlags(flags)
	protocols := flags.String("protocols", "", "what to offer, with commas; nothing if empty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dialer, header, err := newWebSocket(to)
	if err != nil {
		return err
	}
	if *protocols != "" {
		dialer.Subprotocols = strings.Split(*protocols, ",")
	}
	connection, answer, err := dialer.Dial("wss"+strings.TrimPrefix(to.address, "https"), header)
	if err != nil {
		if answer != nil {
			return fmt.Errorf("%w: %s", err, answer.Status)
		}
		return err
	}
	defer connection.Close()
	fmt.Printf("protocol %s\n", connection.Subprotocol())
	go send(connection)
	for {
		kind, message, err := connection.ReadMessage()
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			fmt.Printf("close %d\n", closed.Code)
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Printf("%s %s\n", names[kind], hex.EncodeToString(message))
	}
}

var names = map[int]string{websocket.BinaryMessage: "binary", websocket.TextMessage: "text"}

func send(connection *websocket.Conn) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		name, digits, _ := strings.Cut(lines.Text(), " ")
		message, err := hex.DecodeString(digits)
		if err != nil {
			fail(err)
		}
		kind := websocket.BinaryMessage
		if name == names[websocket.TextMessage] {
			kind = websocket.TextMessage
		}
		if err := connection.WriteMessage(kind, message); err != nil {
			fail(err)
		}
	}
	// Whoever has ended already does not hear it.
	_ = connection.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

func newWebSocket(to *server) (*websocket.Dialer, http.Header, error) {
	tls, err := rest.TLSConfigFor(to.config())
	if err != nil {
		return nil, nil, err
	}
	header := http.Header{}
	if to.token != "" {
		token, err := os.ReadFile(to.token)
		if err != nil {
			return nil, nil, err
		}
		header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	return &websocket.Dialer{TLSClientConfig: tls}, header, nil
}
