# The parts of cloud-init that tests and demos use.

cloud_hostname() {
    get user hostname || get user fqdn || get meta local-hostname || get meta hostname || value=drydock-guest
    hostname "${value%%.*}"
    echo "127.0.0.1 localhost ${value%%.*}" >/etc/hosts
}

set_password() {
    case $2 in
    '$'[1-9]'$'*) hash=$2 ;;
    # The cheapest hash: the guest is emulated, and has nothing to protect.
    *) hash=$(mkpasswd -m md5 "$2") ;;
    esac
    grep -q "^$1:" /etc/passwd || echo "$1::0:0::/root:/bin/sh" >>/etc/passwd
    sed -i "s|^$1:[^:]*:|$1:$hash:|" /etc/passwd
}

# `password` is for the default account of the image. Manifests expect different
# images, so the password is set for the default accounts of all of them.
cloud_users() {
    if get user password; then
        password=$value
        for account in root fedora cirros alpine debian ubuntu; do set_password $account "$password"; done
    fi
    if has user chpasswd.list; then
        get user chpasswd.list && echo "$value" >/run/passwords
        number=0
        while get user chpasswd.list.$number; do
            echo "$value" >>/run/passwords
            number=$((number + 1))
        done
        while IFS=: read -r account password; do
            [ -n "$account" ] && set_password "$account" "$password"
        done </run/passwords
    fi
    for list in chpasswd.users users; do
        number=0
        while has user $list.$number; do
            if get user $list.$number.name; then
                account=$value
                get user $list.$number.password || get user $list.$number.plain_text_passwd ||
                    get user $list.$number.passwd || get user $list.$number.hashed_passwd
                [ -n "$value" ] && set_password "$account" "$value"
            fi
            number=$((number + 1))
        done
    done
}

cloud_files() {
    number=0
    while get user write_files.$number.path; do
        target=$value
        mkdir -p "${target%/*}/"
        get user write_files.$number.content
        content=$value
        get user write_files.$number.encoding
        encoding=$value
        get user write_files.$number.append
        true_value "$value" || : >"$target"
        case $encoding in
        gz+b64 | gz+base64 | gzip+base64) printf %s "$content" | base64 -d | gunzip >>"$target" ;;
        b64 | base64) printf %s "$content" | base64 -d >>"$target" ;;
        *) printf %s "$content" >>"$target" ;;
        esac
        get user write_files.$number.permissions && chmod "${value#0o}" "$target"
        number=$((number + 1))
    done
}

# Each item is a command line for the shell, or a list of arguments that no shell splits.
cloud_commands() {
    number=0
    while has user "$1.$number"; do
        if get user "$1.$number"; then
            sh -c "$value" </dev/null >/dev/console 2>&1
        else
            list=$1.$number
            set -- "$1"
            word=0
            while get user "$list.$word"; do
                set -- "$@" "$value"
                word=$((word + 1))
            done
            ( shift; exec "$@" ) </dev/null >/dev/console 2>&1
        fi
        number=$((number + 1))
    done
}

cloud_script() {
    [ -s $D/user-data ] || return
    read -r first <$D/user-data
    case $first in
    '#!'*)
        chmod 0755 $D/user-data
        $D/user-data </dev/null >/dev/console 2>&1 ||
            sh $D/user-data </dev/null >/dev/console 2>&1
        ;;
    esac
}

cloud_power() {
    get user power_state.mode || return
    case $value in
    poweroff | halt) /lib/drydock/shutdown ;;
    reboot) reboot -f ;;
    esac
}
