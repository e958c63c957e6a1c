//go:build helm

package main

import (
	"maps"
	"pawl/test/assert"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// everything are values that turn on all that the chart can do.
const everything = `
cells:
  - {name: cell0, cell: 0/2, database: {secret: pawl-0, key: url, ownerSecret: owner-0}}
  - {name: cell1, cell: 1/2, database: {secret: pawl-1, key: url, ownerSecret: owner-1}}
autoscaling: {enabled: true}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
settings: {PAWL_PUBLIC_URL: "https://shop.example", PAWL_MAX_CONNS: 24}
policy: |
  approval:
    - {amountOver: 500, currency: USD, timeout: 24h}
policySecret: pawl-policy
imagePullSecrets: [{name: registry}]
podAnnotations: {team: shop}
nodeSelector: {disk: ssd}
tolerations: [{key: shop, operator: Exists}]
affinity: {podAntiAffinity: {}}
service: {annotations: {a: b}}
`

// TestChart lints the chart with helm's linter, renders it, and reads what it renders as strictly as Kubernetes can.
func TestChart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values string
		kinds  map[string]int
	}{
		"by default": {"{}", map[string]int{"Deployment": 1, "Service": 1, "PodDisruptionBudget": 1, "Job": 1}},
		"everything": {everything, map[string]int{
			"Deployment": 2, "Service": 2, "PodDisruptionBudget": 2, "Job": 2, "HorizontalPodAutoscaler": 2, "ServiceMonitor": 2, "ConfigMap": 1,
		}},
		"little": {"migrations: {enabled: false}\npodDisruptionBudget: {enabled: false}", map[string]int{"Deployment": 1, "Service": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var values map[string]any
			assert.NoError(t, yaml.Unmarshal([]byte(c.values), &values))
			linted := lint.RunAll("chart", values, "shop")
			for _, message := range linted.Messages {
				assert.True(t, message.Severity < support.WarningSev, message)
			}
			kinds := map[string]int{}
			for _, text := range render(t, values) {
				kinds[check(t, text)]++
			}
			assert.Equal(t, kinds, c.kinds, "rendered")
		})
	}
	for name, values := range map[string]string{
		"a misspelled value": "replica: 3", "a setting that is none": "settings: {AUTH: required}", "a cell without a database": "cells: [{name: a, cell: 0/2}]",
	} {
		var bad map[string]any
		assert.NoError(t, yaml.Unmarshal([]byte(values), &bad))
		assert.True(t, lint.RunAll("chart", bad, "shop").HighestSeverity >= support.ErrorSev, name, "passes")
	}
}

// render returns the objects of the chart.
func render(t *testing.T, values map[string]any) (objects []string) {
	t.Helper()
	chart, err := loader.Load("chart")
	assert.NoError(t, err)
	assert.True(t, chart.Metadata.Version == number && chart.Metadata.AppVersion == number,
		"the chart says", chart.Metadata.Version, "and", chart.Metadata.AppVersion, "and the program", number)
	release := common.ReleaseOptions{Name: "shop", Namespace: "shop", IsInstall: true, Revision: 1}
	all, err := util.ToRenderValues(chart, values, release, common.DefaultCapabilities)
	assert.NoError(t, err)
	files, err := engine.Render(chart, all)
	assert.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		for _, text := range strings.Split(files[name], "\n---") {
			if strings.TrimSpace(text) != "" {
				objects = append(objects, text)
			}
		}
	}
	return objects
}

// check decodes an object, in which nothing may be unknown, and returns its kind.
func check(t *testing.T, text string) string {
	t.Helper()
	if strings.Contains(text, "kind: ServiceMonitor") {
		var monitor monitoring.ServiceMonitor
		err := yaml.UnmarshalStrict([]byte(text), &monitor)
		assert.True(t, err == nil && len(monitor.Spec.Endpoints) == 1, err, text)
		return "ServiceMonitor"
	}
	object, kind, err := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer().Decode([]byte(text), nil, nil)
	if err != nil {
		t.Errorf("%v\n%s", err, text)
		return ""
	}
	checkPods(t, object)
	return kind.Kind
}

// checkPods: every pod of the chart is shut in, and a service says when it is ready.
func checkPods(t *testing.T, object runtime.Object) {
	t.Helper()
	var pod core.PodSpec
	switch object := object.(type) {
	case *apps.Deployment:
		pod = object.Spec.Template.Spec
		c := pod.Containers[0]
		assert.True(t, c.ReadinessProbe.HTTPGet.Path == "/health" && c.LivenessProbe.HTTPGet.Path == "/livez" && c.StartupProbe != nil,
			"probes", c)
		for label, value := range object.Spec.Selector.MatchLabels {
			assert.Equal(t, object.Spec.Template.Labels[label], value, "its selector does not find its pods", object.Spec.Template.Labels)
		}
	case *batch.Job:
		pod = object.Spec.Template.Spec
		if object.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" || !slices.Equal(pod.Containers[0].Args, []string{"migrate", "up"}) {
			t.Errorf("%+v", object)
		}
	default:
		return
	}
	security, of := pod.Containers[0].SecurityContext, pod.SecurityContext
	if !*of.RunAsNonRoot || *of.RunAsUser != 65532 || of.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault || *pod.AutomountServiceAccountToken ||
		*security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem || !slices.Equal(security.Capabilities.Drop, []core.Capability{"ALL"}) {
		t.Errorf("%+v", pod)
	}
}
