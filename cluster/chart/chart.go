// Package chart is the Helm chart in this folder.
package chart

import (
	"fmt"
	"path/filepath"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// Render returns what the chart's templates become with these values, by the base names of their files. Helm's own code does it.
func Render(folder, namespace string, values map[string]any) (map[string]string, error) {
	chart, err := loader.Load(folder)
	if err != nil {
		return nil, fmt.Errorf("load chart: %w", err)
	}
	release := common.ReleaseOptions{Name: "penstock", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, release, nil)
	if err != nil {
		return nil, fmt.Errorf("check values of chart: %w", err)
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, fmt.Errorf("render chart: %w", err)
	}

	byName := map[string]string{}
	for name, text := range files {
		byName[filepath.Base(name)] = text
	}
	return byName, nil
}
