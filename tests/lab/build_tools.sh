#!/bin/sh
# Builds the Go programs of the laboratory into .tools/bin (or $KOORD_RUNTIMEPROXY_TOOLS).
# With the argument `api-server`: etcd and kube-apiserver in place of the others, which takes 5 minutes. With `versions`:
# other containerds, CRI-O, NRI plugins of others, whole kubelets of both ends of the supported range, and the newest
# kubelet's client; 15 minutes.
# A program that is there in the wanted version is left alone. One after the other: a build
# of containerd fills a small machine by itself.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
tools=${KOORD_RUNTIMEPROXY_TOOLS:-$root/.tools/bin}
containerd=github.com/containerd/containerd/v2
containerd_version=v2.2.1
containerd_versions="v1.7.35 v2.3.7 v2.4.2"
containerd_tags="no_btrfs no_devmapper no_zfs no_aufs"
grpcurl_version=v1.9.3

command -v go >/dev/null || { echo "tests/lab/build_tools.sh: Go is not installed" >&2; exit 1; }
mkdir -p "$tools/.versions"
tools=$(CDPATH='' cd -- "$tools" && pwd)
export CGO_ENABLED=0 GOBIN="$tools"
renice -n 10 $$ >/dev/null

# build NAME VERSION FOLDER GO-ARGUMENT...: runs Go in the folder unless NAME is there in VERSION.
build() {
    name=$1 version=$2 folder=$3
    shift 3
    stamp=$tools/.versions/$name
    if [ -x "$tools/$name" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$version" ]; then
        echo "$name $version: there"
        return
    fi
    started=$(date +%s)
    (cd "$folder" && go "$@")
    printf '%s\n' "$version" >"$stamp"
    echo "$name $version: built in $(($(date +%s) - started)) s"
}

# The version of a program whose source lies in this repository is the hash of that source.
source_version() {
    find "$1" -type f \( -name '*.go' -o -name 'go[._]*' \) | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16
}

# build_containerd VERSION: daemon and shim of another version than the one in .tools/bin, in a folder by its minor one.
build_containerd() {
    place=containerd-$(echo "${1#v}" | cut -d. -f1,2)
    mkdir -p "$tools/$place" "$tools/.versions/$place"
    for program in containerd containerd-shim-runc-v2; do
        case $1 in
        v1.*)
            # A module that excludes versions of others can be built as a dependency only.
            module=github.com/containerd/containerd source=$here/containerd_1_7
            build "$place/$program" "$1" "$source" \
                build -buildvcs=false -tags "$containerd_tags" -ldflags "-s -w -X $module/version.Version=$1" \
                -o "$tools/$place/$program" "$module/cmd/$program"
            ;;
        *)
            GOBIN=$tools/$place build "$place/$program" "$1" / install -tags "$containerd_tags" \
                -ldflags "-s -w -X $containerd/version.Version=$1" "$containerd/cmd/$program@$1"
            ;;
        esac
    done
}

if [ "${1:-}" = api-server ]; then
    build etcd "$(source_version "$here/etcd")" "$here/etcd" \
        build -buildvcs=false -ldflags '-s -w' -o "$tools/etcd" go.etcd.io/etcd/server/v3
    build kube-apiserver "$(source_version "$here/kube_apiserver")" "$here/kube_apiserver" \
        build -buildvcs=false -ldflags '-s -w' -o "$tools/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
    exit
fi
if [ "${1:-}" = versions ]; then
    for version in $containerd_versions; do
        build_containerd "$version"
    done
    plugins=$here/nri_plugins
    for plugin in balloons memory-qos; do
        build "nri-$plugin" "$(source_version "$plugins")" "$plugins" \
            build -buildvcs=false -ldflags '-s -w' -o "$tools/nri-$plugin" \
            "github.com/containers/nri-plugins/cmd/plugins/$plugin"
    done
    crio=github.com/cri-o/cri-o
    crio_source=$here/crio
    build crio "$(source_version "$crio_source")" "$crio_source" \
        build -buildvcs=false -ldflags '-s -w' -o "$tools/crio" \
        -tags "containers_image_openpgp exclude_graphdriver_btrfs exclude_graphdriver_devicemapper" "$crio/cmd/crio"
    pinns=$(cd "$crio_source" && go list -m -f '{{.Dir}}' "$crio")/pinns/src
    [ -x "$tools/pinns" ] || cc -std=gnu99 -Os -static -o "$tools/pinns" "$pinns/pinns.c" "$pinns/sysctl.c"
    client=$root/tests/e2e/kubelet_client
    build kubelet-client-1.37 "$(source_version "$client")" "$client" \
        build -buildvcs=false -modfile=go_1_37.mod -tags kubernetes_1_37 -ldflags '-s -w' \
        -o "$tools/kubelet-client-1.37" .
    for minor in 34 37; do
        module=$here/kubelet_1_$minor
        version=$(sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' "$module/go.mod")
        package=k8s.io/component-base/version
        build "kubelet-1.$minor" "$(source_version "$module")" "$module" \
            build -buildvcs=false \
            -ldflags "-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor" \
            -o "$tools/kubelet-1.$minor" k8s.io/kubernetes/cmd/kubelet
    done
    exit
fi
build grpcurl "$grpcurl_version" / \
    install -ldflags '-s -w' "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl_version"
build h2spec "$(source_version "$here/h2spec")" "$here/h2spec" \
    build -buildvcs=false -ldflags '-s -w' -o "$tools/h2spec" github.com/summerwind/h2spec/cmd/h2spec
build kubelet-client "$(source_version "$root/tests/e2e/kubelet_client")" "$root/tests/e2e/kubelet_client" \
    build -buildvcs=false -ldflags '-s -w' -o "$tools/kubelet-client" .
katalyst=$here/katalyst_types
build katalyst-types "$(source_version "$katalyst")" "$katalyst" \
    build -buildvcs=false -ldflags '-s -w' -o "$tools/katalyst-types" .
nri=$here/nri_adaptation
build nri-adaptation "$(source_version "$nri")" "$nri" \
    build -buildvcs=false -tags nri_no_wasm -ldflags '-s -w' -o "$tools/nri-adaptation" .
build nri-plugin "$(source_version "$nri")" "$nri" \
    build -buildvcs=false -ldflags '-s -w' -o "$tools/nri-plugin" ./plugin
for program in containerd containerd-shim-runc-v2; do
    build "$program" "$containerd_version" / install -tags "$containerd_tags" \
        -ldflags "-s -w -X $containerd/version.Version=$containerd_version" \
        "$containerd/cmd/$program@$containerd_version"
done
