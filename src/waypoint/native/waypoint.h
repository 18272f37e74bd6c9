/* What the programs of this folder have in common: paths inside a box, limits of the protocols, and the
   PAGEMAP_SCAN call. No function of the C library is used here: shim.c includes this too. */

#ifndef WAYPOINT_H
#define WAYPOINT_H

#include <stdint.h>

/* Paths inside a box. */
#define ANCHOR_PROGRAM "/dev/waypoint/bin/anchor"
#define KEEPER_SOCKET "/dev/waypoint.sock"    /* where the anchor takes its requests */
#define INSIDE_FOLDER "/dev/waypoint.inside"  /* where the daemon listens for `waypoint` */

/* A request, to the keeper or from it to the anchor, is one packet. */
#define PACKET_BYTES (1 << 18)
#define MAX_WORDS (PACKET_BYTES / 8)
#define MAX_PTYS 128 /* _MAX_TERMINALS in engine/dump.py */

/* The type of a saved unix socket that peers.c makes again (engine/peers.py): what it is, its number, and the mark. */
#define PEER_MARK (1 << 30)     /* one end of a connection, its descriptor in peers.c is PEERS_FD and its number */
#define PEER_LISTENER (1 << 29) /* besides: it listens, and its number is that of a listener */
#define PEER_SHIFT 4
#define PEER_TYPE 0xf
#define MAX_PEERS ((1 << 24) - 1)
#define PEERS_FD 64
#define LISTENERS_BYTES (96 << 10) /* room for _MAX_LISTENER_NUMBERS in engine/peers.py */

#define PAGE 4096ULL
#define END_OF_MEMORY 0x7ffffffff000ULL

/* PAGEMAP_SCAN of linux/fs.h, which the headers of this machine may be too old for. */
#define SCAN 0xc0606610UL
#define SCAN_WP_MATCHING 0x1
#define IS_WPALLOWED 0x01
#define IS_WRITTEN 0x02
#define IS_FILE 0x04
#define IS_PRESENT 0x08
#define IS_SWAPPED 0x10
#define IS_PFNZERO 0x20
#define IS_SOFT_DIRTY 0x80
#define SCAN_REGIONS 4096
#define WP_ASYNC (1ULL << 15) /* UFFD_FEATURE_WP_ASYNC */

struct scan { /* struct pm_scan_arg */
	uint64_t size, flags, start, end, walk_end, regions, region_count, max_pages;
	uint64_t inverted, all_of, any_of, returned; /* masks of categories */
};
struct region { /* struct page_region */
	uint64_t start, end, categories;
};

#endif
