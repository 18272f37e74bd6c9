# The first process of an environment of the backend `files`. It runs in new mount and pid namespaces (and a user
# namespace unless started by root), builds the root, and waits until its standard input is closed: then all
# processes of the environment end with it.
#
#   bash -c "$(cat holder.sh)" holder TREE BASE ROOT EXCHANGE OPTIONS
#
# TREE/top is the root folder itself; TREE/upper/NAME has what was changed below a top-level folder of BASE.
set -eu
tree=$1 base=${2%/} root=$3 exchange=$4 options=$5

mount --bind "$tree/top" "$root"

# Puts what is at a top-level name of the base into the root.
place() {
    name=$1 from=$base/$1 to=$root/$1
    if [ -L "$from" ]; then
        [ -L "$to" ] || [ -e "$to" ] || cp -P "$from" "$to"
    elif [ -d "$from" ]; then
        mkdir -p "$to" "$tree/upper/$name" "$tree/work/$name"
        mount -t overlay overlay "$to" \
            -o "lowerdir=$from,upperdir=$tree/upper/$name,workdir=$tree/work/$name,$options" 2>/dev/null ||
            # Another mount is below it, and a user may not look under that: seen as it is, not writable.
            { mount --rbind "$from" "$to" && mount -o remount,bind,ro "$to" && echo "read-only $name"; }
    fi
}
shopt -s dotglob nullglob
for path in "$base"/*; do
    case ${path##*/} in
    dev | proc | sys | run | lost+found) ;;
    tmp) [ -n "$base" ] && place tmp ;;
    *) place "${path##*/}" ;;
    esac
done

mkdir -p "$root"/{dev,proc,sys,run,tmp,.waypoint}
chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -o remount,bind,ro "$root/sys" 2>/dev/null || :
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in full null random tty urandom zero; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts" 2>/dev/null && ln -s pts/ptmx "$root/dev/ptmx" || :
mount --bind "$exchange" "$root/.waypoint"

cd "$root"
pivot_root . .
umount -l .
cd /
echo ready
while read -r _; do :; done
