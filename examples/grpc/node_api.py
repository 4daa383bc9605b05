#!/usr/bin/env python3
"""Asks a node's gRPC sockets. Needs grpcio and grpcio-tools; stubs are generated from ../../proto when it starts.

    node_api.py [--root DIR] list|watch|get UID|conditions|watch-conditions|get-conditions UID|resources|allocatable
                |get-resources NAMESPACE NAME|resources-v1alpha1|watch-resources
                |poll-conditions SECONDS|poll-pods SECONDS|poll-watch SECONDS|poll-resources SECONDS|flood SECONDS
                [--mask PATHS] [--count N] [--timeout SECONDS]

One JSON document per message on standard output. A failed call is {"code": ..., "message": ...}, and the exit code is 1.
"""

import argparse
import atexit
import json
import pathlib
import shutil
import sys
import tempfile
import time

import grpc
from google.protobuf import json_format
from grpc_tools import protoc

SOCKETS = {
    "pods": "pods-api/pods-api.sock",
    "info": "pod-info/kubelet.sock",
    "resources": "pod-resources/kubelet.sock",
}
FILES = [
    "core/v1/pod.proto",
    "pods/v1alpha1/api.proto",
    "podinfo/v1alpha1/api.proto",
    "podresources/v1/api.proto",
    "podresources/v1alpha1/api.proto",
    "mainstay/podresources/v1alpha1/watch.proto",
]


def generate(protos):
    """Generates the stubs and makes them importable."""
    out = tempfile.mkdtemp(prefix="node-api-")
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    arguments = ["protoc", f"-I{protos}", f"--python_out={out}", f"--grpc_python_out={out}"]
    if protoc.main(arguments + [str(protos / name) for name in FILES]) != 0:
        sys.exit("cannot generate the stubs")
    sys.path.insert(0, out)


def plain(message):
    """A message as JSON with the names of the .proto file; zeros too, because here they mean something."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def pod(data):
    """The pod in some bytes."""
    from core.v1 import pod_pb2

    return json_format.MessageToDict(pod_pb2.Pod.FromString(data), preserving_proto_field_name=True)


def event(message):
    """An event of a watch of pods."""
    from pods.v1alpha1 import api_pb2

    return {"type": api_pb2.EventType.Name(message.type), "pod": pod(message.pod)}


def poll(options, ask):
    """Asks again and again; tells every other answer once: the code, or what was answered."""
    end, seen = time.monotonic() + float(options.words[0]), []
    while time.monotonic() < end:
        try:
            for answer in ask():
                if answer not in seen:
                    seen.append(answer)
                    yield answer
        except grpc.RpcError as error:
            answer = error.code().name
            if answer not in seen:
                seen.append(answer)
                yield answer
        time.sleep(0.02)


def is_ready(pod):
    """Whether a pod of core/v1 is ready, or None if that is not known."""
    found = [it for it in pod.get("status", {}).get("conditions", []) if it["type"] == "Ready"]
    return found[0]["status"] == "True" if found else None


def followed(stub, timeout):
    """By name whether each pod is ready, whenever a watch of pods is complete or has told something."""
    from pods.v1alpha1 import api_pb2 as pods

    known, complete = {}, False
    for message in map(event, stub.WatchPods(pods.WatchPodsRequest(), timeout=timeout)):
        if message["type"] == "INITIAL_SYNC_COMPLETE":
            complete = True
        elif message["type"] == "DELETED":
            known.pop(message["pod"]["metadata"]["uid"], None)
        else:
            pod = message["pod"]
            known[pod["metadata"]["uid"]] = (pod["metadata"]["name"], is_ready(pod))
        if complete:
            yield dict(known.values())


def ready(pod):
    """Whether a pod is ready, or None if that is not known."""
    from podinfo.v1alpha1 import api_pb2 as info

    found = [it for it in pod.conditions if it.Type == info.ConditionType.Ready]
    return found[0].Status == info.ConditionStatus.Value("True") if found else None


def flood(options, channel):
    """Asks as fast as it can; tells how it went by code."""
    from pods.v1alpha1 import api_pb2, api_pb2_grpc

    stub = api_pb2_grpc.PodsStub(channel)
    end, codes = time.monotonic() + float(options.words[0]), {}
    while time.monotonic() < end:
        calls = [stub.ListPods.future(api_pb2.ListPodsRequest()) for _ in range(64)]
        for call in calls:
            name = call.code().name
            codes[name] = codes.get(name, 0) + 1
    yield codes


def calls(options, channel):
    """What the words ask for, as plain data."""
    from mainstay.podresources.v1alpha1 import watch_pb2, watch_pb2_grpc
    from podinfo.v1alpha1 import api_pb2 as info, api_pb2_grpc as info_grpc
    from podresources.v1 import api_pb2 as v1, api_pb2_grpc as v1_grpc
    from podresources.v1alpha1 import api_pb2 as alpha, api_pb2_grpc as alpha_grpc
    from pods.v1alpha1 import api_pb2 as pods, api_pb2_grpc as pods_grpc

    pods_stub, info_stub = pods_grpc.PodsStub(channel), info_grpc.PodInfoStub(channel)
    v1_stub = v1_grpc.PodResourcesListerStub(channel)
    metadata = [("x-kubernetes-fieldmask", options.mask)] if options.mask is not None else []
    more = {"timeout": options.timeout, "metadata": metadata}
    words = options.words
    match options.what:
        case "list":
            yield [pod(data) for data in pods_stub.ListPods(pods.ListPodsRequest(), **more).pods]
        case "watch":
            yield from map(event, pods_stub.WatchPods(pods.WatchPodsRequest(), **more))
        case "get":
            yield pod(pods_stub.GetPod(pods.GetPodRequest(podUID=words[0]), **more).pod)
        case "conditions":
            yield plain(info_stub.ListPodConditions(info.Empty(), **more))
        case "watch-conditions":
            yield from map(plain, info_stub.WatchPodConditions(info.Empty(), **more))
        case "get-conditions":
            yield plain(info_stub.GetPodConditions(info.PodConditionsRequest(podUID=words[0]), **more))
        case "resources":
            yield plain(v1_stub.List(v1.ListPodResourcesRequest(), **more))
        case "allocatable":
            yield plain(v1_stub.GetAllocatableResources(v1.AllocatableResourcesRequest(), **more))
        case "get-resources":
            request = v1.GetPodResourcesRequest(pod_namespace=words[0], pod_name=words[1])
            yield plain(v1_stub.Get(request, **more))
        case "resources-v1alpha1":
            stub = alpha_grpc.PodResourcesListerStub(channel)
            yield plain(stub.List(alpha.ListPodResourcesRequest(), **more))
        case "watch-resources":
            stub = watch_pb2_grpc.PodResourcesWatcherStub(channel)
            yield from map(plain, stub.Watch(watch_pb2.WatchPodResourcesRequest(), **more))
        case "poll-conditions":
            yield from poll(options, lambda: [{
                it.podName: ready(it) for it in info_stub.ListPodConditions(info.Empty(), timeout=5).Pods
            }])
        case "poll-pods":
            listed = lambda: map(pod, pods_stub.ListPods(pods.ListPodsRequest(), timeout=5).pods)
            yield from poll(options, lambda: [{it["metadata"]["name"]: is_ready(it) for it in listed()}])
        case "poll-watch":
            yield from poll(options, lambda: followed(pods_stub, options.timeout))
        case "poll-resources":
            yield from poll(options, lambda: [sorted(
                it.name for it in v1_stub.List(v1.ListPodResourcesRequest(), timeout=5).pod_resources
            )])
        case "flood":
            yield from flood(options, channel)
        case other:
            sys.exit(f"what is {other}?\n{__doc__}")


def socket_of(what):
    """Which socket answers."""
    if "resources" in what or what == "allocatable":
        return SOCKETS["resources"]
    return SOCKETS["info" if "conditions" in what else "pods"]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--root", default="/var/lib/kubelet", type=pathlib.Path)
    parser.add_argument("--mask")
    parser.add_argument("--count", type=int, help="end after so many messages")
    parser.add_argument("--timeout", type=float)
    options = parser.parse_args()
    generate(pathlib.Path(__file__).resolve().parents[2] / "proto")
    relative = socket_of(options.what)
    limits = [("grpc.max_receive_message_length", 16 << 20), ("grpc.max_reconnect_backoff_ms", 100)]
    with grpc.insecure_channel(f"unix://{options.root.resolve() / relative}", limits) as channel:
        try:
            for number, message in enumerate(calls(options, channel), 1):
                print(json.dumps(message), flush=True)
                if number == options.count:
                    break
        except grpc.RpcError as error:
            print(json.dumps({"code": error.code().name, "message": error.details()}), flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
