package statedb

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	jsonv2 "github.com/go-json-experiment/json"
	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// read decodes the whole file. It returns an error for any data that it cannot decode, because the
// agent would otherwise forget a mount.
func read(tx *bbolt.Tx) (state, error) {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}

	held := func(bucket []byte) []stored {
		all, err := gather(tx, bucket)
		note(err)
		return all
	}

	volumes := held(bucketVolumes)
	s := state{
		volumes: make(map[string]volume.Record, len(volumes)), external: make(map[string]string, len(volumes)),
		staging: map[string]string{}, plugins: map[string]volume.PluginRecord{}, debts: map[string]Debt{},
		registered: map[string]volume.PluginDefinition{}, snapshots: map[string]volume.SnapshotIntent{},
		names: map[string]volume.SnapshotName{}, runtimes: map[string]volume.RuntimeVolume{},
	}

	note(each(bucketVolumes, volumes, decodeRecord, func(key string, r *volume.Record) error {
		if r.Volume.ID != key {
			return fmt.Errorf("volume %q is stored under %q", r.Volume.ID, key)
		}
		r.Claims = map[string]volume.Claim{}
		s.volumes[r.Volume.ID] = *r
		if k := storageKey(r.Volume.Driver, r.Volume.ExternalID); k != "" {
			if other, ok := s.external[k]; ok {
				return fmt.Errorf("volumes %q and %q are one storage volume", other, key)
			}
			s.external[k] = r.Volume.ID
		}

		return nil
	}))

	note(each(bucketClaims, held(bucketClaims), decodeClaim, func(key string, c *volume.Claim) error {
		id, alloc, ok := cut(key)
		r, known := s.volumes[id]
		if !ok || !known || alloc != c.Alloc {
			return fmt.Errorf("claim %q belongs to no volume", key)
		}
		r.Claims[c.Alloc] = *c // this function owns the map until it returns
		return nil
	}))

	note(each(bucketPlugins, held(bucketPlugins), decodeAny, func(key string, p *volume.PluginRecord) error {
		s.plugins[key] = *p
		return nil
	}))

	note(each(bucketDebts, held(bucketDebts), decodeAny, func(key string, d *Debt) error {
		s.debts[key] = *d
		return nil
	}))

	note(readLate(tx, bucketRegistered, s.registered))
	note(errors.Join(readLate(tx, bucketSnapshots, s.snapshots), readLate(tx, bucketNames, s.names)))
	note(readLate(tx, bucketRuntimes, s.runtimes))
	for id, r := range s.volumes {
		s.hold(id, r)
	}

	if meta := tx.Bucket(bucketMeta); meta == nil {
		note(fmt.Errorf("bucket %q is missing", bucketMeta))
	} else if raw := meta.Get(keyNode); raw != nil {
		note(json.Unmarshal(raw, &s.node))
	}

	return s, errors.Join(errs...)
}

// readLate reads a bucket that may not exist yet.
func readLate[V any](tx *bbolt.Tx, bucket []byte, into map[string]V) error {
	if tx.Bucket(bucket) == nil {
		return nil
	}

	all, err := gather(tx, bucket)
	return errors.Join(err, each(bucket, all, decodeAny, func(key string, v *V) error {
		into[key] = *v
		return nil
	}))
}

// share is the number of values that one worker decodes at a time.
const share = 128

// stored is a key and its value as they lie in the file. Both are valid only during the
// transaction.
type stored struct{ key, raw []byte }

// decoded is the result of one share: a value for each key, and an error for each value that could
// not be decoded.
type decoded[V any] struct {
	values   []V
	errs     []error
	panicked any
}

// gather lists a bucket. bbolt itself panics over damage, so only the goroutine of the transaction
// calls bbolt.
func gather(tx *bbolt.Tx, bucket []byte) (all []stored, err error) {
	b := tx.Bucket(bucket)
	if b == nil {
		return nil, fmt.Errorf("bucket %q is missing", bucket)
	}

	err = b.ForEach(func(k, raw []byte) error {
		all = append(all, stored{k, raw})
		return nil
	})

	return all, err
}

// decoder decodes the stored bytes into a value.
type decoder[V any] func(raw []byte, shared interned, v *V) error

// decodeRecord decodes a volume's record. A file can hold thousands of records and claims, and a
// start waits for them. So both are decoded by the implementation of the future encoding/json/v2,
// which needs half the time of encoding/json, and less memory.
func decodeRecord(raw []byte, in interned, r *volume.Record) error {
	err := jsonv2.Unmarshal(raw, r)
	in.record(r)
	return err
}

// decodeClaim decodes a claim, with the same library as decodeRecord.
func decodeClaim(raw []byte, in interned, c *volume.Claim) error {
	err := jsonv2.Unmarshal(raw, c)
	in.claim(c)
	return err
}

func decodeAny[V any](raw []byte, _ interned, v *V) error { return json.Unmarshal(raw, v) }

// each decodes the values of a bucket on all cores. It passes them to fn one at a time, in the
// order of their keys. Each worker has its own interned strings.
func each[V any](bucket []byte, all []stored, decode decoder[V], fn func(key string, v *V) error) error {
	results := make([]chan decoded[V], (len(all)+share-1)/share)
	for i := range results {
		results[i] = make(chan decoded[V], 1)
	}

	var next atomic.Int64
	var workers sync.WaitGroup
	defer workers.Wait() // must end before the transaction does, however each returns

	for range min(runtime.GOMAXPROCS(0), len(results)) {
		workers.Go(func() {
			shared := interned{}
			for i := int(next.Add(1)) - 1; i < len(results); i = int(next.Add(1)) - 1 {
				results[i] <- decodeShare(bucket, all[i*share:min((i+1)*share, len(all))], shared, decode)
			}
		})
	}

	var errs []error
	for i, result := range results {
		d := <-result
		if d.panicked != nil {
			panic(d.panicked) // every reader of the file has a guard
		}
		for j := range d.values {
			err := d.errs[j]
			if err == nil {
				err = fn(string(all[i*share+j].key), &d.values[j])
			}
			if err != nil {
				errs = append(errs, err)
			}
		}
	}

	return errors.Join(errs...)
}

// decodeShare decodes one share. It has its own guard, because a lost page also causes a fault
// here.
func decodeShare[V any](bucket []byte, some []stored, shared interned, decode decoder[V]) (d decoded[V]) {
	defer guard(func(p any) { d.panicked = p })()
	d.values, d.errs = make([]V, len(some)), make([]error, len(some))
	for i, kv := range some {
		if err := decode(kv.raw, shared, &d.values[i]); err != nil {
			d.errs[i] = fmt.Errorf("%s %q: %w", bucket, kv.key, err)
		}
	}

	return d
}

// interned keeps one copy of each string that most records share, while a file is read. With
// thousands of claims, separate copies would need more memory than all other data.
type interned map[string]string

func (in interned) all(ss ...*string) {
	for _, s := range ss {
		if one, ok := in[*s]; ok {
			*s = one
		} else {
			in[*s] = *s
		}
	}
}

func (in interned) record(r *volume.Record) {
	in.all(&r.Volume.PluginID, &r.Volume.Driver, &r.Volume.Reclaim, &r.Node.Boot, &r.Node.NodeID,
		(*string)(&r.Volume.Provision), (*string)(&r.Node.Attached), (*string)(&r.Node.Staged))
	for i := range r.Volume.Capabilities {
		in.capability(&r.Volume.Capabilities[i])
	}
	if r.Node.Mode != nil {
		in.capability(&r.Node.Mode.Capability)
	}
	in.mount(r.Node.Mount)
}

func (in interned) claim(c *volume.Claim) {
	in.all(&c.Alloc, &c.Owner.Kind, &c.Owner.Boot, (*string)(&c.State), (*string)(&c.Published), (*string)(&c.Bound))
	in.capability(&c.Mode)
	in.mount(c.Mount)
	in.mount(c.BoundMount)
}

func (in interned) capability(c *call.Capability) {
	in.all((*string)(&c.Access), (*string)(&c.Attachment))
}

func (in interned) mount(m *volume.MountIdentity) {
	if m != nil {
		in.all(&m.Boot, &m.Device, &m.FSType)
	}
}
