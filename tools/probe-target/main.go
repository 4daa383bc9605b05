// probe-target is what probes are tried on in tests: HTTP, HTTPS with a certificate of its own making, and the gRPC
// health service in plain text. It needs nothing but Go's standard library.
//
//	:8080 HTTP    /code/NNN       answers with that status
//	:8443 HTTPS   /file?path=P    200 if the file exists, else 503
//	              /redirect?to=U  302
//	              /hang           does not answer
//	              /headers?…      200 if each query parameter is the value of the header of its name, else 500
//	:9090 gRPC    grpc.health.v1.Health/Check: SERVING for "" and any service whose name is an existing file,
//	              NOT_SERVING otherwise
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"math/big"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("/code/", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/code/"))
		if err != nil {
			code = 400
		}
		w.WriteHeader(code)
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(r.URL.Query().Get("path")); err != nil {
			w.WriteHeader(503)
		}
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), 302)
	})
	mux.HandleFunc("/hang", func(w http.ResponseWriter, r *http.Request) { time.Sleep(time.Hour) })
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.URL.Query() {
			value := r.Header.Get(name)
			if name == "Host" {
				value = r.Host
			}
			if value != values[0] {
				log.Printf("%s is %q, not %q", name, value, values[0])
				w.WriteHeader(500)
				return
			}
		}
	})

	health := http.NewServeMux()
	health.HandleFunc("POST /grpc.health.v1.Health/Check", check)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)

	go serve(&http.Server{Addr: ":8080", Handler: mux}, false)
	go serve(&http.Server{Addr: ":9090", Handler: health, Protocols: protocols}, false)
	serve(&http.Server{Addr: ":8443", Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate()}}}, true)
}

func serve(server *http.Server, secure bool) {
	if secure {
		log.Fatal(server.ListenAndServeTLS("", ""))
	}
	log.Fatal(server.ListenAndServe())
}

// check reads one gRPC message (five bytes in front) with the service's name in field 1, and answers with field 1.
func check(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	service := ""
	if len(body) > 7 {
		service = string(body[7:])
	}
	status := byte(1)
	if service != "" {
		if _, err := os.Stat(service); err != nil {
			status = 2
		}
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	w.Write([]byte{0, 0, 0, 0, 2, 8, status})
	w.Header().Set("Grpc-Status", "0")
}

func certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"nobody.test"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		log.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
