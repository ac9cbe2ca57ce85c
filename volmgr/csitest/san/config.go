package san

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Config describes a driver. SAN.Driver sets Socket and Node. The zero value of all other fields is
// a driver without attachments, staging and provisioning.
type Config struct {
	Socket string // see SocketPath
	Node   string // name of the host, which is also its CSI node id; default: the host name of the system

	DriverName string // default: "san.example.com"

	// NodeOnly removes the controller service, and ControllerOnly removes the node service.
	NodeOnly       bool
	ControllerOnly bool

	Attach         bool // PUBLISH_UNPUBLISH_VOLUME and PUBLISH_READONLY
	PublishedNodes bool // LIST_VOLUMES_PUBLISHED_NODES, with LIST_VOLUMES and GET_VOLUME
	Provision      bool // CREATE_DELETE_VOLUME, LIST_VOLUMES and GET_VOLUME
	Stage          bool // STAGE_UNSTAGE_VOLUME
	Expand         bool // EXPAND_VOLUME of both services
	Snapshots      bool // CREATE_DELETE_SNAPSHOT and LIST_SNAPSHOTS
	MultiWriter    bool // SINGLE_NODE_MULTI_WRITER of both services

	// SingleNode makes the driver refuse all access modes for several nodes.
	SingleNode bool

	MaxVolumes int64             // max_volumes_per_node; 0 means no limit
	Topology   map[string]string // topology segments of the node; nil means no topology
}

// These are environment variables of child processes.
const (
	envDriver = "SAN_DRIVER" // Config of a driver, in JSON
	envServer = "SAN_SERVER" // directory of a SAN
)

// Driver returns the Config of a driver on a host of this SAN.
func (s *SAN) Driver(node string, c Config) Config {
	c.Socket, c.Node = SocketPath(s.dir), node
	return c
}

func (c Config) encode() (string, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("cannot encode the driver's config: %w", err)
	}
	return string(raw), nil
}

func decodeConfig(raw string) (Config, error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader([]byte(raw)))
	d.DisallowUnknownFields()
	err := d.Decode(&c)
	if _, end := d.Token(); err == nil && !errors.Is(end, io.EOF) {
		err = errors.New("there is data after the JSON value")
	}
	if err != nil {
		return c, fmt.Errorf("cannot read %s: %w", envDriver, err)
	}

	if c.DriverName == "" {
		c.DriverName = "san.example.com"
	}

	return c, nil
}

// Environment returns the environment variables that make a child process run this driver. The
// process also needs CSI_ENDPOINT.
func (c Config) Environment() ([]string, error) {
	v, err := c.encode()
	if err != nil {
		return nil, err
	}
	return []string{envDriver + "=" + v}, nil
}

// PluginFile returns the content of a volagent plugin file, which makes the agent run binary as a
// driver with the given id. The TestMain function of the binary must call Main. The content is JSON,
// which is also valid YAML.
func (c Config) PluginFile(id, binary string) ([]byte, error) {
	v, err := c.encode()
	if err != nil {
		return nil, err
	}

	file := map[string]any{
		"id": id,
		"exec": map[string]any{
			"command": []string{binary},
			"env":     map[string]string{envDriver: v},
		},
	}
	switch {
	case c.NodeOnly:
		file["type"] = "node"
	case c.ControllerOnly:
		file["type"] = "controller"
	}

	raw, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode the plugin file: %w", err)
	}

	return append(raw, '\n'), nil
}
