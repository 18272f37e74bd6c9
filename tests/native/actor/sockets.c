/* Sockets. Each operation makes both ends, so that none waits for another process. */

#include "actor.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static void queue(int fd, long size)
{
	char data[4096];

	memset(data, (int)('A' + size % 26), sizeof(data));
	if (fd >= 0 && size)
		tried(send(fd, data, (size_t)(size % 4000), MSG_DONTWAIT | MSG_NOSIGNAL));
}

/* Which ends stay, and how they are closed. */
static void finish(int one, int other, long how)
{
	static const int ways[] = { SHUT_RD, SHUT_WR, SHUT_RDWR };

	keep(one);
	keep(other);
	if (how >= 1 && how <= 3)
		tried(shutdown(one, ways[how - 1]));
	if (how == 4)
		close(other);
	if (how == 5)
		close(one);
}

static const int types[] = { SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };

static void send_descriptor(int through, int fd)
{
	char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { "x", 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(int));
	tried(sendmsg(through, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static void op_socketpair(const struct operation *o)
{
	int ends[2], flags = o->number[1] & 1 ? SOCK_NONBLOCK : 0, on = 1;

	if (tried(socketpair(AF_UNIX, types[o->number[0] % 3] | flags, 0, ends)) < 0)
		return;
	if (o->number[1] & 2)
		tried(setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)));
	queue(ends[0], o->number[2]);
	if (o->number[1] & 4) {
		queue(ends[0], o->number[2] + 5);
		queue(ends[1], 11);
	}
	if (o->number[1] & 8 && descriptor(o->number[2]) >= 0)
		send_descriptor(ends[0], descriptor(o->number[2]));
	finish(ends[0], ends[1], o->number[3]);
}

static socklen_t name_unix(struct sockaddr_un *address, long number, long abstract)
{
	socklen_t length;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	length = (socklen_t)snprintf(address->sun_path + abstract, 60, "%s%d-%ld", abstract ? "abstract" : "socket", getpid(), number);
	return (socklen_t)offsetof(struct sockaddr_un, sun_path) + length + 1;
}

/* A listener and, if wanted, a connection to it. 0: type; 1: name; 2: bits; 3: bytes; 4: how it ends */
static void op_unix(const struct operation *o)
{
	struct sockaddr_un address, own;
	int type = o->number[0] % 3 ? SOCK_SEQPACKET : SOCK_STREAM;
	int listener = keep(socket(AF_UNIX, type, 0)), client, server;
	socklen_t length = name_unix(&address, o->number[1], o->number[2] & 1), own_length;

	if (listener < 0 || tried(bind(listener, (struct sockaddr *)&address, length)) < 0)
		return;
	tried(listen(listener, 5 + (int)o->number[1]));
	if (o->number[2] & 2) {
		client = socket(AF_UNIX, type, 0);
		own_length = name_unix(&own, o->number[1] + 100, 1);
		if (o->number[2] & 4)
			tried(bind(client, (struct sockaddr *)&own, own_length));
		tried(connect(client, (struct sockaddr *)&address, length));
		server = o->number[2] & 64 ? -1 : accept(listener, NULL, NULL);
		queue(client, o->number[3]);
		if (server >= 0)
			queue(server, o->number[3] / 3);
		finish(client, server, o->number[4]);
	}
	if (o->number[2] & 8 && !(o->number[2] & 1))
		tried(unlink(address.sun_path));
	if (o->number[2] & 16)
		close(listener);
	if (o->number[2] & 32)
		tried(chmod(address.sun_path, 0700));
}

static void op_unix_datagram(const struct operation *o)
{
	struct sockaddr_un address, own;
	socklen_t length = name_unix(&address, o->number[0] + 200, o->number[1] & 1), own_length;
	int receiver = keep(socket(AF_UNIX, SOCK_DGRAM, 0)), sender = keep(socket(AF_UNIX, SOCK_DGRAM, 0));

	tried(bind(receiver, (struct sockaddr *)&address, length));
	own_length = name_unix(&own, o->number[0] + 300, 1);
	if (o->number[1] & 2)
		tried(bind(sender, (struct sockaddr *)&own, own_length));
	tried(connect(sender, (struct sockaddr *)&address, length));
	if (o->number[1] & 8)
		tried(connect(receiver, (struct sockaddr *)&own, own_length));
	queue(sender, o->number[2]);
	if (o->number[1] & 4)
		queue(sender, 3);
	if (o->number[1] & 16)
		close(sender);
}

static socklen_t name_inet(struct sockaddr_storage *address, int family)
{
	struct sockaddr_in *four = (struct sockaddr_in *)address;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;

	memset(address, 0, sizeof(*address));
	if (family == AF_INET) {
		four->sin_family = AF_INET;
		four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		return sizeof(*four);
	}
	six->sin6_family = AF_INET6;
	six->sin6_addr = in6addr_loopback;
	return sizeof(*six);
}

static void set_options(int fd, long bits)
{
	static const struct {
		int level, name, value;
	} options[] = {
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },    { SOL_SOCKET, SO_RCVBUF, 70000 },	{ SOL_SOCKET, SO_SNDBUF, 60000 },
		{ IPPROTO_TCP, TCP_NODELAY, 1 },    { IPPROTO_TCP, TCP_KEEPIDLE, 77 },	{ SOL_SOCKET, SO_OOBINLINE, 1 },
		{ SOL_SOCKET, SO_PRIORITY, 3 },	    { IPPROTO_IP, IP_TOS, 16 },		{ IPPROTO_TCP, TCP_USER_TIMEOUT, 90000 },
		{ SOL_SOCKET, SO_RCVLOWAT, 3 },	    { IPPROTO_IP, IP_TTL, 33 },		{ IPPROTO_TCP, TCP_KEEPINTVL, 44 },
		{ IPPROTO_TCP, TCP_DEFER_ACCEPT, 5 }, { SOL_SOCKET, SO_DONTROUTE, 1 },	{ IPPROTO_TCP, TCP_SYNCNT, 4 },
		{ IPPROTO_TCP, TCP_QUICKACK, 0 },   { IPPROTO_TCP, TCP_LINGER2, 20 },	{ SOL_SOCKET, SO_INCOMING_CPU, 1 },
		{ IPPROTO_IP, IP_RECVTTL, 1 },	    { SOL_SOCKET, SO_BUSY_POLL, 0 },	{ IPPROTO_IP, IP_PKTINFO, 1 },
		{ SOL_SOCKET, SO_TIMESTAMP, 1 },    { SOL_SOCKET, SO_NO_CHECK, 1 },	{ IPPROTO_IP, IP_FREEBIND, 1 },
		{ IPPROTO_TCP, TCP_MAXSEG, 1000 },  { IPPROTO_TCP, TCP_WINDOW_CLAMP, 50000 },
		{ IPPROTO_TCP, TCP_NOTSENT_LOWAT, 9000 }, { IPPROTO_TCP, TCP_FASTOPEN, 6 },
		{ IPPROTO_IP, IP_MTU_DISCOVER, 2 }, { IPPROTO_IP, IP_RECVERR, 1 },
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
		if (bits >> i & 1)
			tried(setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int)));
}

/* 0: options of the descriptor 1; 2: which of the others */
static void op_option(const struct operation *o)
{
	struct linger linger = { 1, 9 };
	struct timeval seconds = { 5, 0 };
	int fd = descriptor(o->number[1]), on = 1;

	if (fd < 0)
		return;
	set_options(fd, o->number[0]);
	switch (o->number[2]) {
	case 1: tried(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger))); break;
	case 2: tried(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &seconds, sizeof(seconds))); break;
	case 3: tried(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &seconds, sizeof(seconds))); break;
	case 4: tried(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on))); break;
	case 5: tried(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3)); break;
	case 6: tried(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on))); break;
	case 7: tried(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4)); break;
	case 8: tried(setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof(on))); break;
	case 9: tried(setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on))); break;
	case 10: tried(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &on, sizeof(on))); break;
	}
}

/* 0: family; 1: bits; 2: options; 3: bytes; 4: how it ends */
static void op_tcp(const struct operation *o)
{
	struct sockaddr_storage address;
	int family = o->number[0] & 1 ? AF_INET6 : AF_INET, client, server, on = 1;
	socklen_t length = name_inet(&address, family);
	int listener = keep(socket(family, SOCK_STREAM, 0));

	if (o->number[1] & 1)
		tried(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	if (o->number[1] & 32)
		return; /* neither bound nor connected */
	if (tried(bind(listener, (struct sockaddr *)&address, length)) < 0)
		return;
	set_options(listener, o->number[2]);
	if (o->number[1] & 16)
		return;
	if (tried(listen(listener, 7)) < 0)
		return;
	getsockname(listener, (struct sockaddr *)&address, &length);
	if (o->number[1] & 2) {
		client = socket(family, SOCK_STREAM | (o->number[1] & 8 ? SOCK_NONBLOCK : 0), 0);
		set_options(client, o->number[2] >> 2);
		tried(connect(client, (struct sockaddr *)&address, length));
		if (o->number[1] & 64) {
			keep(client); /* it is not accepted */
			return;
		}
		queue(client, 1); /* TCP_DEFER_ACCEPT waits for data */
		server = accept(listener, NULL, NULL);
		queue(client, o->number[3]);
		queue(server, o->number[3] / 2);
		if (o->number[1] & 128)
			tried(send(client, "!", 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL));
		finish(client, server, o->number[4]);
	}
	if (o->number[1] & 4)
		close(listener);
}

static void op_udp(const struct operation *o)
{
	struct sockaddr_storage address, own;
	int family = o->number[0] & 1 ? AF_INET6 : AF_INET, protocol = o->number[1] & 16 ? IPPROTO_UDPLITE : 0;
	socklen_t length = name_inet(&address, family), own_length = name_inet(&own, family);
	int one = keep(socket(family, SOCK_DGRAM, protocol)), other = keep(socket(family, SOCK_DGRAM, protocol));

	set_options(one, o->number[2]);
	tried(bind(one, (struct sockaddr *)&address, length));
	getsockname(one, (struct sockaddr *)&address, &length);
	if (o->number[1] & 1)
		tried(bind(other, (struct sockaddr *)&own, own_length));
	if (o->number[1] & 2)
		tried(connect(other, (struct sockaddr *)&address, length));
	if (o->number[1] & 4)
		queue(other, o->number[3]);
	if (o->number[1] & 8)
		tried(shutdown(other, SHUT_WR));
}

/* 0: raw; 1: netlink; 2: packet */
static void op_odd_socket(const struct operation *o)
{
	struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = o->number[1] & 1 ? 1 : 0 };
	int fd;

	switch (o->number[0]) {
	case 0: keep(socket(o->number[1] & 1 ? AF_INET6 : AF_INET, SOCK_RAW, o->number[1] & 2 ? IPPROTO_ICMP : 123)); break;
	case 1:
		fd = keep(socket(AF_NETLINK, SOCK_RAW, o->number[1] & 2 ? NETLINK_ROUTE : NETLINK_SOCK_DIAG));
		if (o->number[1] & 4)
			tried(bind(fd, (struct sockaddr *)&address, sizeof(address)));
		break;
	case 2: keep(socket(AF_PACKET, o->number[1] & 1 ? SOCK_RAW : SOCK_DGRAM, htons(o->number[1] & 2 ? 0x88b5 : 0))); break;
	}
}

const struct operator socket_operators[] = {
	{ "socketpair", op_socketpair }, { "unix", op_unix }, { "unix_datagram", op_unix_datagram },
	{ "option", op_option },	 { "tcp", op_tcp },   { "udp", op_udp },
	{ "odd_socket", op_odd_socket }, { 0 },
};
