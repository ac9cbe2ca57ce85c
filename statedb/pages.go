package statedb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"
	"os"
	"syscall"

	berrors "go.etcd.io/bbolt/errors"
)

// A bbolt file is a tree of pages that refer to each other by number. bbolt trusts these numbers.
// For example, a page that is its own child makes bbolt allocate memory until the kernel kills the
// process. A backup may come from another machine, and a disk can damage the agent's file. The
// agent therefore checks every file before bbolt opens it:
//
//   - The tree contains no page twice, no page from the list of free pages, and no page after the
//     end of the file.
//   - Keys and values are inside their page and do not overlap, so together they are never larger
//     than the file.
//   - Keys are in ascending order, so that no record hides another.
//
// The check maps the file and needs one bit of memory for each page. It follows the page layout in
// go.etcd.io/bbolt/internal/common.

const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	headerSize   = 16 // page id uint64, flags uint16, count uint16, overflow uint32
	elementSize  = 16 // size of an element of a branch or leaf page
	metaSummed   = 56 // number of bytes of a meta page that the checksum covers
	metaSize     = metaSummed + 8
	leastPage    = 1 << 10 // smallest page size that bbolt accepts, in bytes
	largestPage  = 1 << 16 // largest page size of any kernel, in bytes
	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01 // flag of an element whose value is a bucket

	// deepest is the maximum number of pages from the root to a leaf. Even a large file has only a
	// few levels, because bbolt splits a page only when it is full.
	deepest = 64
)

// pages holds the state of checkPages while it checks a file.
type pages struct {
	data  []byte // the mapped file
	size  uint64 // size of a page, in bytes
	count uint64 // number of pages according to the meta page
	seen  []uint64
}

// checkPages checks the pages of a file that has the given size in bytes. It returns a contentError
// error for an invalid file. The error wraps bbolt's ErrInvalid if bbolt would not recognize the
// file as a database.
func checkPages(f *os.File, size int64) (err error) {
	data, err := syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("cannot map %s: %w", f.Name(), err)
	}
	defer func() { err = errors.Join(err, syscall.Munmap(data)) }()

	p, root, free, err := metaOf(data)
	if err == nil {
		err = p.walk(root, 1)
	}
	if err == nil {
		err = p.freelist(free)
	}
	if err != nil {
		return contentError{err}
	}

	return nil
}

// meta is the content of a meta page.
type meta struct{ pageSize, root, freelist, pages, txid uint64 }

// metaAt reads the meta page at an offset. The result ok is false if the offset has no valid meta
// page.
func metaAt(data []byte, at uint64) (m meta, ok bool) {
	if at+headerSize+metaSize > uint64(len(data)) {
		return m, false
	}

	b, order := data[at+headerSize:][:metaSize], binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSummed]) // Write never fails
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion || order.Uint64(b[metaSummed:]) != sum.Sum64() {
		return m, false
	}
	return meta{
		pageSize: uint64(order.Uint32(b[8:])), root: order.Uint64(b[16:]), freelist: order.Uint64(b[32:]),
		pages: order.Uint64(b[40:]), txid: order.Uint64(b[48:]),
	}, true
}

// metaOf returns the meta page that bbolt would use. If both meta pages are valid, bbolt uses the
// newer one.
func metaOf(data []byte) (p pages, root, free uint64, err error) {
	first, ok := metaAt(data, 0)
	for size := uint64(leastPage); !ok && size <= largestPage; size *= 2 {
		first, ok = metaAt(data, size)
	}
	if !ok {
		return p, 0, 0, berrors.ErrInvalid
	}

	m := first
	if second, ok := metaAt(data, first.pageSize); ok && second.txid > first.txid {
		m = second
	}

	p = pages{data: data, size: m.pageSize, count: m.pages}
	switch {
	case m.pageSize != first.pageSize, m.pageSize < leastPage, m.pageSize > largestPage, bits.OnesCount64(m.pageSize) != 1:
		return p, 0, 0, fmt.Errorf("its pages cannot have %d bytes", m.pageSize)
	case m.pages > uint64(len(data))/m.pageSize:
		return p, 0, 0, fmt.Errorf("a part of it is missing: it has %d bytes, and should have %d pages of %d", len(data), m.pages, m.pageSize)
	}

	p.seen = make([]uint64, m.pages/64+1)
	return p, m.root, m.freelist, nil
}

// mark records that a page is in use, and reports whether it was unused before.
func (p *pages) mark(id uint64) bool {
	word, bit := &p.seen[id/64], uint64(1)<<(id%64)
	news := *word&bit == 0
	*word |= bit
	return news
}

// page is one page with its overflow pages.
type page struct {
	id    uint64
	flags uint16
	count uint64
	body  []byte // the content, including the header
}

// take returns a page and marks it as used. It returns an error if the page was already marked.
func (p *pages) take(id uint64) (page, error) {
	const metas = 2
	if id < metas || id >= p.count {
		return page{}, fmt.Errorf("page %d is referenced, but only pages %d to %d are possible", id, metas, p.count)
	}

	head, order := p.data[id*p.size:], binary.NativeEndian
	more := uint64(order.Uint32(head[12:]))
	if more >= p.count-id {
		return page{}, fmt.Errorf("page %d goes beyond the end of the file", id)
	}
	for i := id; i <= id+more; i++ {
		if !p.mark(i) {
			return page{}, fmt.Errorf("page %d is used twice", i)
		}
	}

	got := page{id: id, flags: order.Uint16(head[8:]), count: uint64(order.Uint16(head[10:])), body: head[:(more+1)*p.size]}
	if order.Uint64(head) != id {
		return page{}, fmt.Errorf("page %d has the number %d in its header", id, order.Uint64(head))
	}

	return got, nil
}

// walk checks a page of the tree and all pages below it.
func (p *pages) walk(id uint64, depth int) error {
	if depth > deepest {
		return fmt.Errorf("page %d lies more than %d pages below the root", id, deepest)
	}

	at, err := p.take(id)
	if err != nil {
		return err
	}

	switch at.flags {
	case flagBranch:
		return p.branch(at, depth)
	case flagLeaf:
		return p.leaf(at, depth)
	}

	return fmt.Errorf("page %d is not a page of a tree (flags %#x)", id, at.flags)
}

func (p *pages) branch(at page, depth int) error {
	if at.count == 0 {
		return fmt.Errorf("page %d has no children", at.id)
	}

	end := headerSize + at.count*elementSize
	for i := range at.count {
		e, ok := at.element(i)
		if !ok {
			return at.outside(i)
		}
		pos, keySize := binary.NativeEndian.Uint32(e), binary.NativeEndian.Uint32(e[4:])
		if _, ok = at.value(i, pos, uint64(keySize), &end); !ok {
			return at.outside(i)
		}
		if err := p.walk(binary.NativeEndian.Uint64(e[8:]), depth+1); err != nil {
			return err
		}
	}

	return nil
}

// leaf checks a page of keys and values, or an inline bucket. An inline bucket is a small bucket
// that is stored inside a value. It has depth 0 and cannot contain buckets.
func (p *pages) leaf(at page, depth int) error {
	var last []byte
	end := headerSize + at.count*elementSize
	for i := range at.count {
		e, ok := at.element(i)
		if !ok {
			return at.outside(i)
		}
		order := binary.NativeEndian
		keySize := uint64(order.Uint32(e[8:]))
		both, ok := at.value(i, order.Uint32(e[4:]), keySize+uint64(order.Uint32(e[12:])), &end)
		if !ok {
			return at.outside(i)
		}
		key, value := both[:keySize], both[keySize:]
		if i > 0 && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("the keys of page %d are not in order", at.id)
		}
		last = key
		if order.Uint32(e)&flagBucket != 0 {
			if err := p.bucket(at.id, value, depth); err != nil {
				return err
			}
		}
	}

	return nil
}

// bucket checks a value that represents a bucket. The value contains either the number of the
// bucket's root page or an inline bucket.
func (p *pages) bucket(id uint64, value []byte, depth int) error {
	const bucketSize = 16 // root uint64, sequence uint64
	if len(value) < bucketSize || depth == 0 {
		return fmt.Errorf("page %d has an invalid bucket", id)
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return p.walk(root, depth+1)
	}

	inline := value[bucketSize:]
	if len(inline) < headerSize || binary.NativeEndian.Uint16(inline[8:]) != flagLeaf {
		return fmt.Errorf("page %d has an invalid bucket", id)
	}
	return p.leaf(page{id: id, flags: flagLeaf, count: uint64(binary.NativeEndian.Uint16(inline[10:])), body: inline}, 0)
}

// element returns the bytes of element i of a page.
func (at page) element(i uint64) (e []byte, ok bool) {
	from := headerSize + i*elementSize
	if from+elementSize > uint64(len(at.body)) {
		return nil, false
	}
	return at.body[from : from+elementSize], true
}

// value returns the data of element i. The data must start at *end or later. value then sets *end
// to the end of the data.
func (at page) value(i uint64, pos uint32, size uint64, end *uint64) (v []byte, ok bool) {
	from := headerSize + i*elementSize + uint64(pos)
	if from < *end || from+size > uint64(len(at.body)) {
		return nil, false
	}
	*end = from + size
	return at.body[from:*end], true
}

func (at page) outside(i uint64) error {
	return fmt.Errorf("element %d of page %d points to an invalid place for its data", i, at.id)
}

// freelist checks the list of free pages. bbolt writes this list with each commit.
func (p *pages) freelist(id uint64) error {
	at, err := p.take(id)
	if err != nil {
		return fmt.Errorf("the list of free pages: %w", err)
	}
	if at.flags != flagFreelist {
		return fmt.Errorf("page %d is not a list of free pages (flags %#x)", id, at.flags)
	}

	const idSize, counted = 8, 0xFFFF // if the count exceeds 16 bits, the first entry holds it
	n, ids := at.count, at.body[headerSize:]
	if n == counted {
		n, ids = binary.NativeEndian.Uint64(ids), ids[idSize:]
	}

	if n > uint64(len(ids))/idSize {
		return fmt.Errorf("the list of free pages has %d entries, but room for only %d", n, len(ids)/idSize)
	}
	for i := range n {
		free := binary.NativeEndian.Uint64(ids[i*idSize:])
		if free < 2 || free >= p.count || !p.mark(free) {
			return fmt.Errorf("page %d is on the list of free pages, but is in use or does not exist", free)
		}
	}

	return nil
}
